package webhooks

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of Standard Webhooks.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
)

// SecretPrefix is what a secret begins with. Base64 of 24 to 64 bytes follows.
const SecretPrefix = "whsec_"

// NewSecret returns a random secret.
func NewSecret() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return SecretPrefix + base64.StdEncoding.EncodeToString(key)
}

// CheckSecret returns an error if a text is no secret.
func CheckSecret(secret string) error {
	_, err := signingKey(secret)
	return err
}

// signingKey returns the bytes of a secret.
func signingKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, SecretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, errors.New("a secret is " + SecretPrefix + " and base64 of 24 to 64 bytes")
	}
	return key, nil
}

// sign adds the headers: one signature for each secret.
func sign(h http.Header, m Message, at time.Time) error {
	stamp := strconv.FormatInt(at.Unix(), 10)
	var signatures []string
	for _, secret := range m.Secrets {
		key, err := signingKey(secret)
		if err != nil {
			return err
		}
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(m.ID + "." + stamp + "."))
		_, _ = mac.Write(m.Body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	h.Set(HeaderID, m.ID)
	h.Set(HeaderTimestamp, stamp)
	if len(signatures) > 0 {
		h.Set(HeaderSignature, strings.Join(signatures, " "))
	}
	return nil
}
