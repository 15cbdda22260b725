package wsapi

import "crypto/tls"

func insecure() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }
