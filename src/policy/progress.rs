//! How far each lane of a producer has come, and who waits for that: the answer to flush.

use crate::error::Error;

/// What a flush waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Every result is fixed.
    Fixed,
    /// Every result is fixed and every permit has come back, so every callback has returned.
    Returned,
}

/// Places of a lane that are done, in any order: how far all of them are.
#[cfg(feature = "rocketmq")]
#[derive(Debug, Default)]
pub(crate) struct Watermark {
    low: u64,
    beyond: std::collections::BTreeSet<u64>,
}

#[cfg(feature = "rocketmq")]
impl Watermark {
    /// One more place is done; by how many places the mark rises. Places count from 1, each is given once.
    pub(crate) fn add(&mut self, place: u64) -> u64 {
        self.beyond.insert(place);
        let before = self.low;
        while self.beyond.first() == Some(&(self.low + 1)) {
            self.beyond.pop_first();
            self.low += 1;
        }
        self.low - before
    }

    /// Everything up to here is done.
    pub(crate) fn low(&self) -> u64 {
        self.low
    }
}

#[derive(Debug, Default)]
struct Lane {
    fixed: u64,
    returned: u64,
    /// The first failure that no flush has told, and how far the range of the latest one reaches.
    untold: Option<Untold>,
}

#[derive(Debug)]
struct Untold {
    place: u64,
    first: Error,
    through: u64,
    latest: Error,
}

impl Lane {
    fn reached(&self, what: Flushed) -> u64 {
        match what {
            Flushed::Fixed => self.fixed,
            Flushed::Returned => self.fixed.min(self.returned),
        }
    }

    fn failed(&mut self, place: u64, through: u64, error: &Error) {
        match &mut self.untold {
            // Where results are fixed in any order, an earlier place may fail later.
            Some(untold) if place < untold.place => {
                untold.place = place;
                untold.first = error.clone();
            }
            Some(untold) => {
                untold.through = untold.through.max(through);
                untold.latest = error.clone();
            }
            None => self.untold = Some(Untold { place, first: error.clone(), through, latest: error.clone() }),
        }
    }

    /// A flush has told the failures up to `target`.
    fn told(&mut self, target: u64) {
        if let Some(untold) = self.untold.take_if(|untold| untold.place <= target) {
            if untold.through > target {
                let latest = untold.latest;
                let place = target.saturating_add(1);
                self.untold = Some(Untold { place, first: latest.clone(), through: untold.through, latest });
            }
        }
    }
}

#[derive(Debug)]
struct Watch<W> {
    id: u64,
    what: Flushed,
    targets: Vec<u64>,
    /// Lanes that have not reached their target.
    left: usize,
    failure: Option<Error>,
    owner: W,
}

/// What comes of a new watch.
#[derive(Debug)]
pub(crate) enum Watched {
    /// Nothing to wait for; the failure to tell, if any.
    Already(Option<Error>),
    Waiting(WatchId),
}

/// Names a watch for [`Progress::unwatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WatchId(u64);

/// Watches that have ended, each with its owner and the first failure.
pub(crate) type Ended<W> = Vec<(W, Option<Error>)>;

/// The progress of one producer's lanes. `W` is whatever wakes the owner of a watch.
#[derive(Debug)]
pub(crate) struct Progress<W> {
    lanes: Vec<Lane>,
    watches: Vec<Watch<W>>,
    next_watch: u64,
}

impl<W> Progress<W> {
    pub(crate) fn new() -> Self {
        Self { lanes: Vec::new(), watches: Vec::new(), next_watch: 0 }
    }

    /// Waits until each lane has reached its target place. The failure told at the end is the first one among
    /// everything up to the targets that no earlier flush has told.
    pub(crate) fn watch(&mut self, what: Flushed, targets: Vec<u64>, owner: impl FnOnce() -> W) -> Watched {
        self.lane_mut(targets.len().saturating_sub(1));
        let lanes = || self.lanes.iter().zip(&targets);
        let left = lanes().filter(|(lane, target)| lane.reached(what) < **target).count();
        let failure = lanes().find_map(|(lane, target)| {
            lane.untold.as_ref().filter(|untold| untold.place <= *target).map(|untold| untold.first.clone())
        });
        if left == 0 {
            if failure.is_some() {
                self.told(&targets);
            }
            return Watched::Already(failure);
        }
        let id = self.next_watch;
        self.next_watch += 1;
        self.watches.push(Watch { id, what, targets, left, failure, owner: owner() });
        Watched::Waiting(WatchId(id))
    }

    /// Gives a watch up. False if it has ended already.
    pub(crate) fn unwatch(&mut self, WatchId(id): WatchId) -> bool {
        let before = self.watches.len();
        self.watches.retain(|watch| watch.id != id);
        self.watches.len() < before
    }

    /// The results of all places of the lane up to `through` are fixed; `failure` is the first that failed of the
    /// places that this call adds.
    pub(crate) fn fixed(&mut self, lane: usize, through: u64, failure: Option<(u64, Error)>) -> Ended<W> {
        if let Some((place, error)) = &failure {
            for watch in &mut self.watches {
                if watch.failure.is_none() && watch.targets.get(lane).is_some_and(|target| place <= target) {
                    watch.failure = Some(error.clone());
                }
            }
            self.lane_mut(lane).failed(*place, through.max(*place), error);
        }
        self.advance(lane, |lane| lane.fixed = lane.fixed.max(through))
    }

    /// `count` more places of the lane have their permits back.
    pub(crate) fn returned(&mut self, lane: usize, count: u64) -> Ended<W> {
        self.advance(lane, |lane| lane.returned = lane.returned.saturating_add(count))
    }

    fn advance(&mut self, lane: usize, step: impl FnOnce(&mut Lane)) -> Ended<W> {
        let state = self.lane_mut(lane);
        let before = [Flushed::Fixed, Flushed::Returned].map(|what| state.reached(what));
        step(state);
        let after = [Flushed::Fixed, Flushed::Returned].map(|what| state.reached(what));
        if self.watches.is_empty() || before == after {
            return Vec::new();
        }
        for watch in &mut self.watches {
            let (before, after) = match watch.what {
                Flushed::Fixed => (before[0], after[0]),
                Flushed::Returned => (before[1], after[1]),
            };
            if watch.targets.get(lane).is_some_and(|target| before < *target && *target <= after) {
                watch.left -= 1;
            }
        }
        let mut ended = Vec::new();
        while let Some(at) = self.watches.iter().position(|watch| watch.left == 0) {
            let watch = self.watches.remove(at);
            if watch.failure.is_some() {
                self.told(&watch.targets);
            }
            ended.push((watch.owner, watch.failure));
        }
        ended
    }

    fn told(&mut self, targets: &[u64]) {
        for (lane, target) in self.lanes.iter_mut().zip(targets) {
            lane.told(*target);
        }
    }

    #[allow(clippy::indexing_slicing)] // grown just above
    fn lane_mut(&mut self, lane: usize) -> &mut Lane {
        if lane >= self.lanes.len() {
            self.lanes.resize_with(lane + 1, Lane::default);
        }
        &mut self.lanes[lane]
    }
}

#[cfg(test)]
mod tests;
