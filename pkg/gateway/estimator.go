package gateway

// CodeBadEstimator is the code of a definition that names a token estimator which
// does not exist.
const CodeBadEstimator = "bad_token_estimator"

// checkEstimator reports a token estimator that there is not.
func (g *Gateway) checkEstimator(name string) error {
	if check := g.cfg.CheckEstimator; check != nil {
		if err := check(name); err != nil {
			return unprocessable(CodeBadEstimator, "config.%s", err.Error())
		}
	}
	return nil
}
