//! The parts of a run: busy and broken, healed, probed, closed.

use super::plan::TOPICS;
use super::schedule::{MS, SEC};
use super::world::{Event, Stage, World};
use crate::pending::completion;
use crate::rocketmq::engine::event::Command;

impl World {
    pub(super) fn enter(&mut self, stage: Stage) {
        self.note("stage", stage as u64, 0);
        self.stage = stage;
        match stage {
            Stage::Healed => {
                for index in 0..self.endpoints.len() {
                    self.heal(index);
                }
                self.after(60 * SEC, Event::Stage(Stage::Probing));
            }
            Stage::Probing => {
                self.check_probing();
                for index in 0..self.shells.len() {
                    if self.shells[index].open {
                        (0..3).for_each(|_| self.send(index, true));
                    }
                }
                for index in (0..self.consumers.len()).filter(|index| self.consumers[*index].open).collect::<Vec<_>>() {
                    for place in 0..2 * TOPICS.len() {
                        let delay = self.rng.below(18 * SEC) * u64::from(place > 0);
                        self.after(delay, Event::Probe(index, place));
                    }
                    let settled = self.now > self.start_due[&self.consumers[index].session] + 5 * SEC;
                    if settled {
                        self.after(25 * SEC, Event::Unsubscribe(index));
                    }
                }
                self.after(31 * SEC, Event::Stage(Stage::ShuttingDown));
            }
            Stage::ShuttingDown => {
                for index in 0..self.shells.len() {
                    self.shells[index].done = true;
                    self.look(index);
                }
                self.consumers.iter_mut().for_each(|consumer| consumer.done = true);
                let long = self.rng.chance(1, 3);
                let limit = 200 * MS + self.rng.below(if long { 40 * SEC } else { 10 * SEC });
                let flush_until = self.instant(self.now + limit);
                let (reply, pending) = completion();
                self.shutdown = Some((pending, self.now + limit));
                self.engine(|engine, now| engine.handle_command(now, Command::Shutdown { flush_until, reply }));
                self.after(80 * SEC, Event::Stage(Stage::Over));
            }
            Stage::Busy | Stage::Over => {}
        }
    }
}
