//! Base64, as keys of bytes travel.
