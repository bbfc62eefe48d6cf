//! How error texts quote what a user or a peer wrote: escaped, and never longer than a line.

/// Longest quote, in characters. A peer may send megabytes; an error text stays a clause.
const LONGEST: usize = 100;

/// `part` in double quotes with control characters escaped, cut to 100 characters.
pub(crate) fn quoted(part: &str) -> String {
    match part.char_indices().nth(LONGEST) {
        None => format!("{part:?}"),
        Some((cut, _)) => format!("{:?}…", part.get(..cut).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_cuts() {
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"é".repeat(100)), format!("\"{}\"", "é".repeat(100)));
        assert_eq!(quoted(&"é".repeat(101)), format!("\"{}\"…", "é".repeat(100)));
    }
}
