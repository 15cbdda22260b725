package host

func (h *Real) listenForCalls() error { return nil }
func (h *Real) commandDir() string    { return h.cfg.Dir + "/bin" }
