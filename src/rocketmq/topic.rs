//! What a route says of a topic, for users.

/// A queue of a topic, as the topic's route names it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicQueue {
    /// Its number at its broker (`MessageQueue.id`), from 0.
    pub id: i32,
    /// The broker that holds it (`Broker.name`).
    pub broker: String,
    /// Where that broker is reached: `host:port`, or several with `;` between.
    pub endpoints: String,
    /// Whether messages can be received from it.
    pub readable: bool,
    /// Whether messages can be sent to it.
    pub writable: bool,
    /// The types of messages that it takes, in the protocol's words: `NORMAL`, `FIFO`, `DELAY`, `TRANSACTION` and so
    /// on. Empty if the server does not say.
    pub accepts: Vec<String>,
}
