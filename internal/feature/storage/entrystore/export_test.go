package entrystore

// OwnerOf is whose bucket has a name.
var OwnerOf = ownerOf

// Most bounds the agents for which the store makes storage.
func (s *Store) Most(n int) *Store { s.most = n; return s }
