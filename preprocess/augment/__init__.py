"""Steps that add documents made from others: how many, how they are checked, and by what they are made."""
