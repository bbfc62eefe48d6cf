//! Where results go: to a callback, or to somebody who waits.

use crate::error::Error;
use crate::pending::Completion;

/// Where the result of an operation goes.
pub(crate) enum Reply<R> {
    /// A closure, run on a callback thread.
    Callback(Box<dyn FnOnce(Result<R, Error>) + Send>),
    /// A caller that waits, or the holder of a `Pending`.
    Completion(Completion<R>),
    /// The answer was given.
    Answered,
}
