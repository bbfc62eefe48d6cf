//! What a verification has found, and whether the promises held.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::time::Duration;

use super::ledger::{Fate, Ledger};
use super::read_back::ReadBack;
use crate::report::{Object, grouped, millis, table};

/// By how much a result may be fixed after its send timeout.
pub const TOLERANCE: Duration = Duration::from_millis(100);

/// What the client has counted itself, whatever its system. Times are the longest seen.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    pub longest_answer: Duration,
    pub longest_overdue: Duration,
    pub callback_lag: Duration,
    pub loop_lag: Duration,
    pub recoveries: u64,
}

#[derive(Debug)]
pub struct Findings {
    pub accepted: u64,
    pub answered: u64,
    pub unanswered: u64,
    pub answered_twice: u64,
    pub late: u64,
    pub max_answer: Duration,
    pub max_callback_lag: Duration,
    pub max_loop_lag: Duration,
    pub longest_call: Duration,
    pub ok: u64,
    pub timed_out: u64,
    pub failed: u64,
    pub lost_acknowledged: u64,
    pub order_violations: u64,
    pub duplicates: u64,
    pub recoveries: u64,
    pub recovery: Option<Duration>,

    // For people only.
    pub refused: u64,
    pub stored_although_failed: u64,
    pub redelivered: u64,
    pub foreign: u64,
    /// The most by which a result was fixed after its timeout, as the library reports it.
    pub longest_overdue: Duration,
    /// The same by our own clock: callback start − call − timeout − reported lag.
    pub longest_own_overdue: Duration,
    /// The longest that a thread of this process was left waiting by the machine, the library's or not.
    pub longest_stall: Duration,
    pub read_back: bool,
    pub reading_ended: Option<String>,
    errors: BTreeMap<String, (u64, String)>,
}

impl Findings {
    /// `read` is `None` if the topic was not read back. `unanswered` is what was open when all should have been
    /// answered: the close answers it too late.
    pub fn new<P: Eq + Hash>(
        ledger: &Ledger,
        read: Option<&ReadBack<P>>,
        stats: &Clocks,
        send_timeout: Duration,
        unanswered: u64,
    ) -> Self {
        let lag = stats.callback_lag;
        let own = ledger.overdue(send_timeout + TOLERANCE, lag).count() as u64;
        let fixed = u64::from(stats.longest_overdue > TOLERANCE);
        let stored = |fate: Option<Fate>| matches!(fate, Some(Fate::Stored { .. }));
        let numbered = || (0u64..).zip(&ledger.sends);
        let read_anyway = |read: &ReadBack<P>| {
            let fate = |(number, send): &(u64, &super::ledger::Send)| {
                !stored(send.answered.map(|(_, fate)| fate)) && read.has(*number)
            };
            numbered().filter(fate).count() as u64
        };
        Self {
            accepted: ledger.accepted,
            answered: ledger.answered,
            unanswered,
            answered_twice: ledger.answered_twice(),
            late: own.max(fixed),
            max_answer: stats.longest_answer,
            max_callback_lag: lag,
            max_loop_lag: stats.loop_lag,
            longest_call: ledger.longest_call(),
            ok: ledger.stored,
            timed_out: ledger.timed_out,
            failed: ledger.failed,
            lost_acknowledged: read.map_or(0, |read| ledger.acknowledged().filter(|n| !read.has(*n)).count() as u64),
            order_violations: read.map_or(0, |read| read.out_of_order.len() as u64),
            duplicates: read.map_or(0, |read| read.duplicates),
            recoveries: stats.recoveries,
            recovery: ledger.recovery(),
            refused: ledger.refused,
            stored_although_failed: read.map_or(0, read_anyway),
            redelivered: read.map_or(0, |read| read.redelivered),
            foreign: read.map_or(0, |read| read.foreign),
            longest_overdue: stats.longest_overdue,
            longest_own_overdue: ledger.overdue(send_timeout, lag).max().unwrap_or_default(),
            longest_stall: Duration::ZERO,
            read_back: read.is_some(),
            reading_ended: read.and_then(|read| read.ended.clone()),
            errors: ledger.errors.clone(),
        }
    }

    /// Whether every promise held, on at least one message.
    pub fn hold(&self) -> bool {
        let violations =
            self.unanswered + self.answered_twice + self.late + self.lost_acknowledged + self.order_violations;
        violations == 0 && self.ok > 0
    }

    /// Late answers may be the machine's doing: says how busy it was.
    pub fn about_lateness(&self) -> String {
        format!(
            "results were fixed up to {} ms past their timeout; in the same time the machine left a thread that only \
             sleeps waiting for up to {} ms",
            millis(self.longest_overdue.max(self.longest_own_overdue)),
            millis(self.longest_stall)
        )
    }

    pub fn object(&self) -> Object {
        Object::new()
            .with("accepted", self.accepted)
            .with("answered", self.answered)
            .with("unanswered", self.unanswered)
            .with("answered_twice", self.answered_twice)
            .with("late", self.late)
            .with("max_answer_ms", millis(self.max_answer))
            .with("max_callback_lag_ms", millis(self.max_callback_lag))
            .with("max_loop_lag_ms", millis(self.max_loop_lag))
            .with("longest_call_ms", millis(self.longest_call))
            .with("ok", self.ok)
            .with("timed_out", self.timed_out)
            .with("failed", self.failed)
            .with("lost_acknowledged", self.lost_acknowledged)
            .with("order_violations", self.order_violations)
            .with("duplicates", self.duplicates)
            .with("recoveries", self.recoveries)
            .with("recovery_ms", millis(self.recovery.unwrap_or_default()))
    }

    pub fn text(&self) -> String {
        let mark = |violations: u64| match violations {
            0 => "0".to_owned(),
            some => format!("{}  VIOLATION", grouped(some)),
        };
        let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let mut rows = vec![
            ("accepted", grouped(self.accepted)),
            ("  stored", grouped(self.ok)),
            ("  timed out", grouped(self.timed_out)),
            ("  failed otherwise", grouped(self.failed)),
            ("refused at the call", grouped(self.refused)),
            ("unanswered", mark(self.unanswered)),
            ("answered twice", mark(self.answered_twice)),
            ("fixed too late", mark(self.late)),
            (
                "longest answer",
                format!(
                    "{}; past its timeout by {}, by our own clock {}",
                    ms(self.max_answer),
                    ms(self.longest_overdue),
                    ms(self.longest_own_overdue)
                ),
            ),
            (
                "longest lag",
                format!(
                    "{} of callbacks, {} of the loop; the machine stalled a sleeping thread for {}",
                    ms(self.max_callback_lag),
                    ms(self.max_loop_lag),
                    ms(self.longest_stall)
                ),
            ),
            ("longest call", ms(self.longest_call)),
        ];
        if self.read_back {
            rows.push(("acknowledged, lost", mark(self.lost_acknowledged)));
            rows.push(("out of order", mark(self.order_violations)));
            rows.push((
                "duplicates",
                format!(
                    "{} stored twice, {} stored although not acknowledged (both may be)",
                    grouped(self.duplicates),
                    grouped(self.stored_although_failed)
                ),
            ));
            rows.push((
                "also read",
                format!("{} delivered again, {} of others", grouped(self.redelivered), grouped(self.foreign)),
            ));
        }
        rows.push((
            "recoveries",
            match self.recovery {
                Some(recovery) => format!("{}; longest from call to next success {}", self.recoveries, ms(recovery)),
                None => self.recoveries.to_string(),
            },
        ));
        for (kind, (count, first)) in &self.errors {
            rows.push(("error", format!("{} {kind}: {first}", grouped(*count))));
        }
        if let Some(ended) = &self.reading_ended {
            rows.push(("reading ended", ended.clone()));
        }
        let verdict = if self.hold() {
            "every promise held"
        } else if self.ok == 0 {
            "nothing was stored: nothing is shown"
        } else {
            "A PROMISE WAS BROKEN"
        };
        rows.push(("verdict", verdict.to_owned()));
        table(&rows)
    }
}
