//! Sends at a rate, each body headed by the time of its call: latency is up to when it is received.

use std::time::{Duration, Instant};

use super::Plan;
use crate::meter::Meter;
use crate::pacer::Pacer;
use crate::system::Producer;

/// The head of a body: when it was sent, and its number.
const HEAD: usize = 16;

/// What was sent.
pub struct Sent {
    /// Started with the first message after the warm-up, if that came.
    pub meter: Option<Meter>,
    pub accepted: u64,
}

/// Sends everything, times counting from `epoch`, and waits for the answers.
pub fn send_all(producer: &impl Producer, plan: &Plan, usual_rate: f64, epoch: Instant) -> Sent {
    let rate = plan.rate.unwrap_or(usual_rate);
    // The warm-up is part of the same stream, so that the clock starts on a running one.
    let span = plan.span.map(|span| span + Duration::from_secs_f64(plan.warmup as f64 / rate));
    let count = plan.count.map(|count| count.saturating_add(plan.warmup));
    let counters = plan.counters;
    let mut sent = Sent { meter: None, accepted: 0 };
    for number in Pacer::new(Some(rate), count, span) {
        if number == plan.warmup {
            sent.meter = Some(Meter::start());
        }
        let body = headed(epoch.elapsed(), number, plan.size);
        match producer.send_with(number, body, move |result| counters.answered(&result)) {
            Ok(()) => sent.accepted += 1,
            Err(error) if counters.refused(&error) => {}
            Err(_) => break,
        }
    }
    producer.drain();
    sent
}

fn headed(sent: Duration, number: u64, size: usize) -> Vec<u8> {
    let size = size.max(HEAD);
    let mut body = Vec::with_capacity(size);
    body.extend_from_slice(&(sent.as_nanos() as u64).to_le_bytes());
    body.extend_from_slice(&number.to_le_bytes());
    body.resize(size, b'x');
    body
}

/// When a message was sent, and its number.
pub fn head(body: &[u8]) -> Option<(Duration, u64)> {
    let (sent, rest) = body.split_first_chunk::<8>()?;
    let number = rest.first_chunk::<8>()?;
    Some((Duration::from_nanos(u64::from_le_bytes(*sent)), u64::from_le_bytes(*number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_keep_their_head() {
        let body = headed(Duration::from_micros(1500), 42, 100);
        assert_eq!((body.len(), head(&body)), (100, Some((Duration::from_micros(1500), 42))));
        assert_eq!(headed(Duration::ZERO, 1, 3).len(), HEAD);
        assert_eq!(head(b"too short"), None);
    }
}
