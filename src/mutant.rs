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
        /// Recovery: the cooldown does not hold evidence back.
        RecoversInTheCooldown,
        /// Recovery: one heartbeat past its deadline is enough.
        OneLateHeartbeatIsEnough,
        /// Recovery: heartbeats past their deadline count for nothing.
        LateHeartbeatsAreForgiven,
        /// Recovery: the server's command waits for the cooldown.
        TheServerHasToWait,
        /// An ordinary call that fails replaces its channel.
        HintsReplace,
        /// A refused request isolates its endpoint.
        RefusalsIsolate,
        /// Throttling isolates its endpoint.
        ThrottlingIsolates,
        /// A stream begins without Settings.
        SettingsAreNotFirst,
        /// A stream that ended stays so.
        StreamsAreNotRenewed,
        /// A replacement leaves the old channel's calls alone.
        ReplacedKeepsItsCalls,
        /// An attempt that a replacement cut off counts.
        CutOffSendsCount,
        /// A route query that a replacement cut off counts.
        CutOffRoutesCount,
        /// A group has several messages in flight.
        GroupsRunAhead,
        /// A send is looked at a little after it is due.
        DueIsLate,
        /// A closed session leaves its streams open.
        ClosedKeepsItsStreams,
        /// A closing session sends no heartbeats.
        ClosingIsSilent,
        /// An address is never forgotten.
        KeepsAddresses,
        /// A receive polls one broker.
        PollsOneBroker,
        /// A poll that finds nothing does not go again.
        PollsOnce,
        /// A message stays in the buffer when it is given.
        GivesTwice,
        /// A message of a subscription that ended is given.
        GivesUnsubscribed,
        /// Results of a batch come in the other order.
        AnswersAreSwapped,
        /// A batch has a result too few.
        AckLosesAResult,
        /// A receive is not ended by its time.
        ReceivesHaveNoEnd,
        /// A change gives the handle back that it replaced.
        KeepsTheOldHandle,
        /// A change of subscriptions is told with the next round of settings.
        SubscriptionsAreToldLater,
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
