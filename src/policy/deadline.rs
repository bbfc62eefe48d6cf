//! Keys and the instants when they are due.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// One due time a key. Every operation costs O(log n), and memory follows the number of armed keys: arming a
/// key again leaves nothing behind.
///
/// A key says *when to look*, not what to do: whoever owns the state it speaks of checks again when it is due.
/// Hence a key is never moved to a later time by [`arm`](Self::arm).
#[derive(Debug)]
pub(crate) struct DeadlineQueue<K> {
    due_of: HashMap<K, Instant>,
    in_order: BTreeSet<(Instant, K)>,
}

impl<K: Copy + Eq + Hash + Ord> DeadlineQueue<K> {
    pub fn new() -> Self {
        Self { due_of: HashMap::new(), in_order: BTreeSet::new() }
    }

    /// Arms `key` if it is unarmed or armed for later. True if the earliest due time of the whole queue moved
    /// earlier (or is the first), so that whoever sleeps until then has to sleep less.
    pub fn arm(&mut self, key: K, at: Instant) -> bool {
        if let Some(&armed) = self.due_of.get(&key) {
            if armed <= at {
                return false;
            }
        }
        let was_next = self.next_due();
        if let Some(later) = self.due_of.insert(key, at) {
            self.in_order.remove(&(later, key));
        }
        self.in_order.insert((at, key));
        was_next.is_none_or(|next| at < next)
    }

    /// True if the key was armed.
    pub fn cancel(&mut self, key: K) -> bool {
        match self.due_of.remove(&key) {
            Some(at) => self.in_order.remove(&(at, key)),
            None => false,
        }
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.in_order.first().map(|&(at, _)| at)
    }

    /// Takes the key that has been due the longest at `now`; it is unarmed from here on.
    pub fn pop_due(&mut self, now: Instant) -> Option<K> {
        let &(at, key) = self.in_order.first()?;
        if at > now {
            return None;
        }
        self.in_order.pop_first();
        self.due_of.remove(&key);
        Some(key)
    }

    /// Cancels every key that `keep` refuses. O(n).
    pub fn retain(&mut self, mut keep: impl FnMut(&K) -> bool) {
        self.due_of.retain(|key, _| keep(key));
        let due_of = &self.due_of;
        self.in_order.retain(|(_, key)| due_of.contains_key(key));
    }

    /// When a key is due, if it is armed.
    #[cfg(test)]
    pub fn due_of(&self, key: K) -> Option<Instant> {
        self.due_of.get(&key).copied()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.in_order.len()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::policy::rng::Rng;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn keys_come_out_in_order_of_time_and_only_when_due() {
        let start = Instant::now();
        let mut queue = DeadlineQueue::new();
        assert!(queue.arm('b', start + ms(20)));
        assert!(queue.arm('a', start + ms(10)));
        assert!(!queue.arm('c', start + ms(30)));
        assert_eq!(queue.next_due(), Some(start + ms(10)));
        assert_eq!(queue.pop_due(start + ms(9)), None);
        assert_eq!(queue.pop_due(start + ms(20)), Some('a'));
        assert_eq!(queue.pop_due(start + ms(20)), Some('b'));
        assert_eq!(queue.pop_due(start + ms(20)), None);
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn arming_again_only_moves_earlier() {
        let start = Instant::now();
        let mut queue = DeadlineQueue::new();
        assert!(queue.arm(1, start + ms(20)));
        assert!(!queue.arm(1, start + ms(30)));
        assert!(!queue.arm(1, start + ms(20)));
        assert_eq!(queue.next_due(), Some(start + ms(20)));
        assert!(queue.arm(1, start + ms(10)));
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.pop_due(start + ms(30)), Some(1));
        assert!(queue.is_empty());
        assert!(queue.arm(1, start + ms(40)), "after firing a key is unarmed");
    }

    #[test]
    fn cancel_and_retain_take_keys_out() {
        let start = Instant::now();
        let mut queue = DeadlineQueue::new();
        for key in 0..6 {
            queue.arm(key, start + ms(key));
        }
        assert!(queue.cancel(0));
        assert!(!queue.cancel(0));
        queue.retain(|key| key % 2 == 0);
        assert_eq!(queue.pop_due(start + ms(9)), Some(2));
        assert_eq!(queue.pop_due(start + ms(9)), Some(4));
        assert_eq!(queue.pop_due(start + ms(9)), None);
    }

    #[test]
    fn arming_again_leaves_nothing_behind() {
        let start = Instant::now() + ms(100_000);
        let mut queue = DeadlineQueue::new();
        for step in 0..100_000 {
            queue.arm(step % 3, start - ms(step));
        }
        assert_eq!((queue.in_order.len(), queue.due_of.len()), (3, 3));
    }

    #[test]
    fn agrees_with_a_simple_model() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let start = Instant::now();
            let mut queue = DeadlineQueue::new();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for _ in 0..500 {
                let (key, at) = (rng.below(20), rng.below(1_000));
                match rng.below(4) {
                    0 | 1 => {
                        let next = model.values().min().copied();
                        let slot = model.entry(key).or_insert(u64::MAX);
                        *slot = at.min(*slot);
                        let moved = queue.arm(key, start + ms(at));
                        assert_eq!(moved, next.is_none_or(|next| at < next), "seed {seed}");
                    }
                    2 => assert_eq!(queue.cancel(key), model.remove(&key).is_some(), "seed {seed}"),
                    _ => {
                        let due = model.iter().map(|(&key, &at)| (at, key)).min().filter(|&(due, _)| due <= at);
                        assert_eq!(queue.pop_due(start + ms(at)), due.map(|(_, key)| key), "seed {seed}");
                        due.map(|(_, key)| model.remove(&key));
                    }
                }
                assert_eq!(queue.len(), model.len());
                assert_eq!(queue.next_due(), model.values().min().map(|&at| start + ms(at)));
            }
        }
    }
}
