//! What was read from the topic: which numbers, how often stored, and in what order.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Instant;

/// Everything that came from the topic so far.
#[derive(Debug)]
pub struct ReadBack<P> {
    numbers: HashSet<u64>,
    /// Places in the topic: a message that is delivered again is no second one.
    places: HashSet<P>,
    /// The highest number of each line: what is in order in itself, such as a partition.
    highest: HashMap<String, u64>,
    /// Further copies of a number, at places of their own.
    pub duplicates: u64,
    /// Numbers whose first copy stands behind a higher number of the same line.
    pub out_of_order: Vec<u64>,
    pub redelivered: u64,
    /// Not from this run, or not readable.
    pub foreign: u64,
    pub last_arrival: Instant,
    /// Why reading ended, if it did.
    pub ended: Option<String>,
}

impl<P: Eq + Hash> ReadBack<P> {
    pub fn new(now: Instant) -> Self {
        Self {
            numbers: HashSet::new(),
            places: HashSet::new(),
            highest: HashMap::new(),
            duplicates: 0,
            out_of_order: Vec::new(),
            redelivered: 0,
            foreign: 0,
            last_arrival: now,
            ended: None,
        }
    }

    /// A message from this run's producer; `number` is `None` if its body is not one, `line` if it is in no order.
    pub fn read(&mut self, now: Instant, line: Option<&str>, place: P, number: Option<u64>) {
        self.last_arrival = now;
        if !self.places.insert(place) {
            self.redelivered += 1;
            return;
        }
        let Some(number) = number else {
            self.foreign += 1;
            return;
        };
        if !self.numbers.insert(number) {
            self.duplicates += 1;
            return;
        }
        let Some(line) = line else { return };
        match self.highest.get_mut(line) {
            Some(highest) if *highest > number => self.out_of_order.push(number),
            Some(highest) => *highest = number,
            None => {
                self.highest.insert(line.to_owned(), number);
            }
        }
    }

    pub fn has(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }

    /// How many different numbers were read.
    pub fn count(&self) -> u64 {
        self.numbers.len() as u64
    }
}

/// The body of a numbered message: the number and spaces up to `size`, so that people can read it too.
pub fn body(number: u64, size: usize) -> Vec<u8> {
    format!("{number:<size$}").into_bytes()
}

pub fn number(body: &[u8]) -> Option<u64> {
    std::str::from_utf8(body).ok()?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_keep_their_number() {
        assert_eq!(body(42, 10), b"42        ");
        assert_eq!(number(&body(42, 10)), Some(42));
        assert_eq!(number(&body(u64::MAX, 1)), Some(u64::MAX));
        assert_eq!(number(b"hello"), None);
        assert_eq!(number(&[0xff]), None);
    }

    #[test]
    fn a_repeated_run_is_duplicates_and_no_disorder() {
        let mut read = ReadBack::new(Instant::now());
        for (entry, number) in [0, 1, 2, 1, 2, 3].into_iter().enumerate() {
            read.read(Instant::now(), Some("t"), entry, Some(number));
        }
        assert_eq!((read.count(), read.duplicates, read.out_of_order.len()), (4, 2, 0));
    }

    #[test]
    fn a_redelivery_counts_once() {
        let mut read = ReadBack::new(Instant::now());
        for (entry, number) in [(1, 0), (2, 1), (1, 0), (2, 1), (3, 2)] {
            read.read(Instant::now(), Some("t"), entry, Some(number));
        }
        assert_eq!((read.count(), read.duplicates, read.redelivered, read.out_of_order.len()), (3, 0, 2, 0));
    }

    #[test]
    fn order_is_that_of_first_copies_in_a_partition() {
        let mut read = ReadBack::new(Instant::now());
        for (entry, topic, number) in [(1, "a", 5), (2, "b", 1), (3, "a", 6), (4, "a", 4)] {
            read.read(Instant::now(), Some(topic), entry, Some(number));
        }
        assert_eq!(read.out_of_order, [4]);
        read.read(Instant::now(), None, 10, Some(2));
        assert_eq!(read.out_of_order, [4], "in no line");
        read.read(Instant::now(), Some("a"), 9, None);
        assert_eq!((read.foreign, read.has(4), read.has(7)), (1, true, false));
    }
}
