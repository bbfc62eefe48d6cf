//! Defects on purpose: the simulated world has to find each of them, or it proves nothing.

/// Whether a defect is switched on. Always false outside of tests.
macro_rules! mutant {
    ($name:ident) => {{
        #[cfg(test)]
        let on = crate::mutant::on(crate::mutant::Mutant::$name);
        #[cfg(not(test))]
        let on = false;
        on
    }};
}

#[cfg(test)]
pub(crate) use switch::{Mutant, on, with};

#[cfg(test)]
mod switch {
    use std::cell::Cell;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Mutant {
        /// Admission: who comes later does not stand behind the line.
        JumpsTheLine,
        /// Admission: permits that come back do not serve the line.
        LineIsNotServed,
        /// Permit return: one of several stays away.
        LosesAPermit,
        /// Leaving out: what is due is sent all the same.
        SendsWhatIsDue,
        /// Resend order: the oldest is left out.
        ResendsFromTheSecond,
        /// Link generation: a close that came over an old link ends the new session.
        AnyLinkMayClose,
        /// Link generation: receive permits of an old session count in the new one.
        OldPermitsCount,
        /// Due check: a second early.
        DueIsEarly,
        /// Due check: a lane is watched once.
        NeverArmsAgain,
        /// A receipt of what timed out completes what is at the front now.
        OldReceiptCounts,
        /// What timed out after it was sent is told as never sent.
        DoubtIsDenied,
        /// A link that is being made is made once more.
        DialsTwice,
    }

    thread_local! {
        static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(crate) fn on(mutant: Mutant) -> bool {
        ON.get() == Some(mutant)
    }

    /// Runs something with a defect switched on, on this thread alone.
    pub(crate) fn with<R>(mutant: Mutant, run: impl FnOnce() -> R) -> R {
        ON.set(Some(mutant));
        let result = run();
        ON.set(None);
        result
    }
}
