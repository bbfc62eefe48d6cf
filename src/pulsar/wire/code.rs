//! What the broker's error codes mean: the one table.

use crate::error::Error;

/// The error for a code that the broker answered `operation` with. `message` is the broker's own text.
pub(crate) fn server_error(code: i32, operation: &str, message: &str) -> Error {
    todo!("{code} {operation} {message}")
}
