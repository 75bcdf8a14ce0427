# The one binary, for any role: `docker run IMAGE planner`, `docker run IMAGE server --secure …`.
# It needs no shell and no user but its own (65532). There is no HEALTHCHECK, since the image has
# nothing that asks over HTTP: ask /healthz and /readyz of the listeners instead.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/moorebus ./cmd/moorebus
RUN mkdir -p /out/data /out/site

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/moorebus /usr/local/bin/moorebus
# A new volume takes its owner from these.
COPY --from=build --chown=65532:65532 /out/data /var/lib/moorebus
COPY --from=build --chown=65532:65532 /out/site /etc/moorebus
ENV MOOREBUS_DATA=/var/lib/moorebus
WORKDIR /var/lib/moorebus
USER 65532:65532
# NATS, HTTP, metrics
EXPOSE 4222 8080 9090
ENTRYPOINT ["/usr/local/bin/moorebus"]
CMD ["--help"]
