package host

func commandMain() {}
