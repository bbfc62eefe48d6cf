//! How error texts repeat what a user or a peer wrote: on one line, and never long.

/// Longest quote, in characters. A peer may send megabytes; an error text stays a clause.
const LONGEST: usize = 100;

/// A server's own text may be a whole stack trace; this much of it is kept.
const LONGEST_MESSAGE: usize = 400;

/// `part` in double quotes with control characters escaped, cut to 100 characters.
pub(crate) fn quoted(part: &str) -> String {
    match part.char_indices().nth(LONGEST) {
        None => format!("{part:?}"),
        Some((cut, _)) => format!("{:?}…", part.get(..cut).unwrap_or_default()),
    }
}

/// A server's own text on one line, cut to 400 characters.
pub(crate) fn one_line(message: &str) -> String {
    let mut text: String =
        message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_MESSAGE + 1).collect();
    if text.chars().count() > LONGEST_MESSAGE {
        text.pop();
        text.push('…');
    }
    text
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

    #[test]
    fn a_server_s_text_is_made_one_short_line() {
        assert_eq!(one_line("a\nb\tc\r"), "a b c ");
        assert_eq!(one_line(&"é".repeat(400)), "é".repeat(400));
        assert_eq!(one_line(&"é".repeat(401)), format!("{}…", "é".repeat(400)));
    }
}
