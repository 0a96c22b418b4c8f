"""Steps that drop or change one document at a time, a file each."""
