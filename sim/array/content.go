package array

import "strconv"

// Action is what has to become of content.
type Action string

// The actions.
const (
	// MakeImage: Image of SizeMiB, all zeros.
	MakeImage Action = "make"
	// CopyImage: Image is made with the content of From as of now, of SizeMiB.
	CopyImage Action = "copy"
	// OverwriteImage: Image, which exists, gets the content of From as of now.
	OverwriteImage Action = "overwrite"
	// GrowImage: Image becomes SizeMiB; what is new reads as zeros.
	GrowImage Action = "grow"
	// DropImage: Image is no more.
	DropImage Action = "drop"
	// ShareImage: from now on the volume Volume of the array Array reads and
	// writes Image, which is another's as well.
	ShareImage Action = "share"
	// SplitImage: from now on that volume reads and writes Image alone, which a
	// CopyImage before has made.
	SplitImage Action = "split"
)

// ContentOp is one thing that has to be done with content for a command to
// hold, in the order given. Between the first and the commit of the command
// the content must not change: a consumer whose store can't copy on write
// freezes From.
type ContentOp struct {
	Do      Action
	Image   string
	From    string
	SizeMiB int64
	Array   string // serial number, with ShareImage and SplitImage
	Volume  string // its name there
}

// Image names are unique over all arrays and never used again.
func (a *Array) imageName(seq uint64, generation int) string {
	var b [64]byte
	out := append(append(b[:0], a.cfg.Serial...), '-')
	out = append(strconv.AppendUint(out, seq, 10), '-')
	return string(strconv.AppendInt(out, int64(generation), 10))
}

// setImage gives a volume another image.
func (a *Array) setImage(v *volume, image string) {
	delete(a.byImage, v.Image)
	v.Image = image
	a.byImage[image] = v
}
