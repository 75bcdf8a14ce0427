package blobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

const (
	// partBytes is the size of the parts of large objects, which are held in memory one at a time. A server
	// takes 10,000 of them.
	partBytes = 16 << 20
	// patience is how long a connection and the beginning of an answer may take, tries how often a request
	// that got no answer is sent.
	patience = 20 * time.Second
	tries    = 4
)

// bucket is a prefix of a bucket of an S3-compatible server.
type bucket struct {
	core             minio.Core
	url              string
	endpoint, region string
	name, prefix     string
}

// newBucket reads s3://BUCKET/PREFIX?endpoint=URL&path_style=BOOL&region=NAME.
func newBucket(u *url.URL) (Store, error) {
	bad := func(format string, args ...any) (Store, error) {
		return nil, fmt.Errorf("%s: %s", u.Redacted(), fmt.Sprintf(format, args...))
	}
	b := &bucket{url: u.Redacted(), name: u.Host, prefix: strings.Trim(u.Path, "/"), endpoint: "https://s3.amazonaws.com"}
	lookup := minio.BucketLookupAuto
	for key, values := range u.Query() {
		switch value := values[len(values)-1]; {
		case key == "endpoint":
			b.endpoint = value
		case key == "region":
			b.region = value
		case key == "path_style" && value == "true":
			lookup = minio.BucketLookupPath
		case key == "path_style" && value == "false":
			lookup = minio.BucketLookupDNS
		default:
			return bad("parameter %s=%s is not known; there are endpoint=URL, path_style=true|false and region=NAME", key, value)
		}
	}
	end, err := url.Parse(b.endpoint)
	switch {
	case err != nil || end.Host == "" || end.Scheme != "http" && end.Scheme != "https" || strings.Trim(end.Path, "/") != "":
		return bad("endpoint %q is not a URL such as https://s3.example.com", b.endpoint)
	case u.User != nil:
		return bad("keys do not belong into the URL: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case b.name == "":
		return bad("it names no bucket: write s3://BUCKET/PREFIX")
	case s3utils.CheckValidBucketNameStrict(b.name) != nil:
		return bad("%q is no name of a bucket", b.name)
	case b.prefix != "" && checkKey(b.prefix) != nil:
		return bad("%q is no prefix", b.prefix)
	}
	keys, err := credentials.NewEnvAWS().GetWithContext(nil)
	if err != nil || keys.AccessKeyID == "" || keys.SecretAccessKey == "" {
		return bad("set the keys of the server, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	if b.region == "" {
		b.region = os.Getenv("AWS_REGION")
	}
	transport, err := minio.DefaultTransport(end.Scheme == "https")
	if err != nil {
		return nil, err
	}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: patience, KeepAlive: patience}).DialContext(ctx, network, address)
		return watched{conn}, err
	}
	transport.ResponseHeaderTimeout = 3 * patience // a server may have to put a large object together
	client, err := minio.New(end.Host, &minio.Options{
		Creds: credentials.NewEnvAWS(), Secure: end.Scheme == "https", Transport: transport, Region: b.region, BucketLookup: lookup, MaxRetries: tries,
	})
	if err != nil {
		return bad("%s", err)
	}
	b.core = minio.Core{Client: client}
	return b, nil
}

// watched is a connection that fails if nothing moves on it for some time. Else a body that stops halfway is
// waited for forever. What is written gives an answer that is waited for meanwhile more time, too.
type watched struct{ net.Conn }

func (c watched) Read(p []byte) (int, error) {
	return c.more(c.Conn.Read, p)
}

func (c watched) Write(p []byte) (int, error) {
	return c.more(c.Conn.Write, p)
}

func (c watched) more(do func([]byte) (int, error), p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(3 * patience)); err != nil {
		return 0, err
	}
	return do(p)
}

// body is that of an answer. Its errors say what they mean.
type body struct {
	io.ReadCloser
	explain func(error) error
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.explain(err)
	}
	return n, err
}

func (b *bucket) String() string           { return b.url }
func (b *bucket) object(key string) string { return path.Join(b.prefix, key) }

// Put implements [Store].
func (b *bucket) Put(ctx context.Context, key string, r io.Reader) error {
	if err := checkKey(key); err != nil {
		return err
	}
	o := minio.PutObjectOptions{PartSize: partBytes}
	var first bytes.Buffer
	size, err := io.CopyN(&first, reader{ctx, r}, partBytes)
	switch {
	case errors.Is(err, io.EOF):
		// One request stores it, which is sent again as it is.
		_, err = b.core.Client.PutObject(ctx, b.name, b.object(key), bytes.NewReader(first.Bytes()), size, o)
	case err == nil:
		_, err = b.core.Client.PutObject(ctx, b.name, b.object(key), io.MultiReader(&first, r), -1, o)
	}
	return b.explain(ctx, key, err)
}

// PutIf implements [Store].
func (b *bucket) PutIf(ctx context.Context, key string, data []byte, version string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	o := minio.PutObjectOptions{DisableMultipart: true}
	if version == "" {
		o.SetMatchETagExcept("*")
	} else {
		o.SetMatchETag(version)
	}
	_, err := b.core.Client.PutObject(ctx, b.name, b.object(key), bytes.NewReader(data), int64(len(data)), o)
	return b.explain(ctx, key, err)
}

// Get implements [Store].
func (b *bucket) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	return b.get(ctx, key, minio.GetObjectOptions{})
}

func (b *bucket) get(ctx context.Context, key string, o minio.GetObjectOptions) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	r, _, _, err := b.core.GetObject(ctx, b.name, b.object(key), o)
	if err != nil {
		return nil, b.explain(ctx, key, err)
	}
	return body{r, func(err error) error { return b.explain(ctx, key, err) }}, nil
}

// Range implements [Store].
func (b *bucket) Range(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	var o minio.GetObjectOptions
	if length == 0 {
		_, err := b.Stat(ctx, key)
		return nil, err
	}
	if err := o.SetRange(offset, offset+length-1); err != nil {
		return nil, err
	}
	r, err := b.get(ctx, key, o)
	if err != nil {
		return nil, err
	}
	data, err := readRange(r, length)
	return data, errors.Join(err, r.Close())
}

// Stat implements [Store].
func (b *bucket) Stat(ctx context.Context, key string) (Info, error) {
	if err := checkKey(key); err != nil {
		return Info{}, err
	}
	info, err := b.core.StatObject(ctx, b.name, b.object(key), minio.StatObjectOptions{})
	if err != nil {
		return Info{}, b.explain(ctx, key, err)
	}
	return Info{Key: key, Size: info.Size, Modified: info.LastModified, Version: info.ETag}, nil
}

// List implements [Store].
func (b *bucket) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	below := ""
	if b.prefix != "" {
		below = b.prefix + "/"
	}
	return func(yield func(Info, error) bool) {
		ctx, cancel := context.WithCancel(ctx) // ends the reading ahead
		defer cancel()
		for o := range b.core.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: below + prefix, Recursive: true}) {
			err := b.explain(ctx, prefix, o.Err)
			if !yield(Info{Key: strings.TrimPrefix(o.Key, below), Size: o.Size, Modified: o.LastModified}, err) || err != nil {
				return
			}
		}
	}
}

// Delete implements [Store].
func (b *bucket) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return b.explain(ctx, key, b.core.RemoveObject(ctx, b.name, b.object(key), minio.RemoveObjectOptions{}))
}

// explain says what an error of the server means, and what to do.
func (b *bucket) explain(ctx context.Context, key string, err error) error {
	var answer minio.ErrorResponse
	var network net.Error
	switch {
	case err == nil || ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case !errors.As(err, &answer) && (errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF)):
		return fmt.Errorf("%s: %w from %s: check the endpoint and the network: %w", b.url, ErrNoAnswer, b.endpoint, err)
	}
	switch answer.Code {
	case "NoSuchKey":
		return fmt.Errorf("%s: %s: %w", b.url, key, ErrNotExist)
	case "PreconditionFailed", "ConditionalRequestConflict":
		return fmt.Errorf("%s: %s: %w", b.url, key, ErrChanged)
	case "InvalidRange":
		return fmt.Errorf("%s: %s: %w", b.url, key, io.ErrUnexpectedEOF)
	case "NoSuchBucket":
		return fmt.Errorf("%s: there is no bucket %q at %s: make it, or name another one", b.url, b.name, b.endpoint)
	case "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "AuthorizationHeaderMalformed":
		return fmt.Errorf("%s: the server refuses the keys: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the region, and what the keys may do with the bucket: %w", b.url, err)
	case "RequestTimeTooSkewed":
		return fmt.Errorf("%s: the clock of this machine is wrong: %w", b.url, err)
	}
	if answer.StatusCode == http.StatusNotImplemented {
		return fmt.Errorf("%s: the server cannot store under a condition (If-None-Match, If-Match): use another one: %w", b.url, err)
	}
	return fmt.Errorf("%s: %s: %w", b.url, key, err)
}
