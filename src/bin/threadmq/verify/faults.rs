//! Faults that `--embedded` makes, and when.

use std::time::{Duration, Instant};

use threadmq::testkit::Network;

use crate::interrupt;
use crate::outcome::Failure;

/// What happens to the way to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Present links go silent for good; new ones pass.
    HalfOpen,
    /// Nothing passes for so long, and then what was held does.
    Freeze(Duration),
    /// All links are reset and new ones refused for so long, as while a server is killed and started again.
    Restart(Duration),
}

impl Fault {
    /// Those that the command line asks for.
    pub fn list(half_open: Option<u16>, freeze: Option<Duration>, restart: Option<Duration>) -> Vec<Self> {
        let half_open = std::iter::repeat_n(Self::HalfOpen, half_open.unwrap_or(0).into());
        half_open.chain(freeze.map(Self::Freeze)).chain(restart.map(Self::Restart)).collect()
    }

    fn length(self) -> Duration {
        match self {
            Self::HalfOpen => Duration::ZERO,
            Self::Freeze(length) | Self::Restart(length) => length,
        }
    }

    pub fn describe(self) -> String {
        match self {
            Self::HalfOpen => "the link goes half-open: silent for good, while new ones work".to_owned(),
            Self::Freeze(length) => format!("the broker is frozen for {:.1} s", length.as_secs_f64()),
            Self::Restart(length) => format!("the broker is down for {:.1} s", length.as_secs_f64()),
        }
    }
}

/// Faults and when they begin, counted from the first send.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule(Vec<(Duration, Fault)>);

impl Schedule {
    pub fn at(when: Duration, fault: Fault) -> Self {
        Self(vec![(when, fault)])
    }

    /// Spreads faults over a run, with the same time before, between and after them.
    pub fn spread(faults: &[Fault], run: Duration) -> Result<Self, Failure> {
        /// Less than this between two faults shows nothing.
        const LEAST: Duration = Duration::from_millis(500);
        let gaps = u32::try_from(faults.len() + 1).unwrap_or(u32::MAX);
        let busy: Duration = faults.iter().map(|fault| fault.length()).sum();
        let gap = run.checked_sub(busy).unwrap_or_default() / gaps;
        if !faults.is_empty() && gap < LEAST {
            return Err(Failure::new(format!(
                "--seconds {}: too short for {} faults that last {:.1} s together",
                run.as_secs_f64(),
                faults.len(),
                busy.as_secs_f64()
            )));
        }
        let mut at = Duration::ZERO;
        let place = |fault: &Fault| {
            at += gap;
            let begins = at;
            at += fault.length();
            (begins, *fault)
        };
        Ok(Self(faults.iter().map(place).collect()))
    }

    /// Makes the faults, each announced as it begins. Ctrl-C ends them early; nothing stays broken.
    pub fn carry_out(&self, network: &Network, begin: Instant, announce: &dyn Fn(&str)) {
        for (when, fault) in &self.0 {
            if !interrupt::sleep_until(begin.checked_add(*when)) {
                return;
            }
            announce(&fault.describe());
            let over = Instant::now().checked_add(fault.length());
            match fault {
                Fault::HalfOpen => network.half_open(),
                Fault::Freeze(_) => {
                    network.freeze();
                    interrupt::sleep_until(over);
                    network.thaw();
                    announce("the broker is thawed");
                }
                Fault::Restart(_) => {
                    network.refuse();
                    network.reset();
                    interrupt::sleep_until(over);
                    match network.accept() {
                        Ok(()) => announce("the broker is back"),
                        Err(error) => announce(&format!("the broker's port is lost: {error}")),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn faults_are_spread_evenly() {
        let schedule = Schedule::spread(&[Fault::HalfOpen; 3], SECOND * 60).unwrap();
        let times: Vec<_> = schedule.0.iter().map(|(at, _)| at.as_secs()).collect();
        assert_eq!(times, [15, 30, 45]);
        let schedule = Schedule::spread(&[Fault::Freeze(SECOND * 20)], SECOND * 60).unwrap();
        assert_eq!(schedule, Schedule::at(SECOND * 20, Fault::Freeze(SECOND * 20)));
        let two = Schedule::spread(&[Fault::Freeze(SECOND * 10), Fault::HalfOpen], SECOND * 40).unwrap();
        assert_eq!(two.0.iter().map(|(at, _)| at.as_secs()).collect::<Vec<_>>(), [10, 30]);
    }

    #[test]
    fn faults_must_fit() {
        let failure = Schedule::spread(&[Fault::Freeze(SECOND * 20)], SECOND * 20).unwrap_err();
        assert!(failure.to_string().contains("--seconds"), "{failure}");
        assert_eq!(Schedule::spread(&[], SECOND).unwrap(), Schedule::default());
    }
}
