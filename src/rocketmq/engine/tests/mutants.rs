//! Each planted defect is found by the default number of seeds.

use super::simulation::run_seed;
use crate::mutant::{Mutant, with};

const MUTANTS: [Mutant; 28] = [
    Mutant::LineIsNotServed,
    Mutant::DoubtIsDenied,
    Mutant::RecoversInTheCooldown,
    Mutant::OneLateHeartbeatIsEnough,
    Mutant::LateHeartbeatsAreForgiven,
    Mutant::TheServerHasToWait,
    Mutant::HintsReplace,
    Mutant::RefusalsIsolate,
    Mutant::ThrottlingIsolates,
    Mutant::SettingsAreNotFirst,
    Mutant::StreamsAreNotRenewed,
    Mutant::ReplacedKeepsItsCalls,
    Mutant::CutOffSendsCount,
    Mutant::CutOffRoutesCount,
    Mutant::GroupsRunAhead,
    Mutant::DueIsLate,
    Mutant::ClosedKeepsItsStreams,
    Mutant::ClosingIsSilent,
    Mutant::KeepsAddresses,
    Mutant::PollsOneBroker,
    Mutant::PollsOnce,
    Mutant::GivesTwice,
    Mutant::GivesUnsubscribed,
    Mutant::AnswersAreSwapped,
    Mutant::AckLosesAResult,
    Mutant::ReceivesHaveNoEnd,
    Mutant::KeepsTheOldHandle,
    Mutant::SubscriptionsAreToldLater,
];

#[test]
fn mutants() {
    let mut survivors = Vec::new();
    for mutant in MUTANTS {
        let found = with(mutant, || (1..=2_000).find_map(|seed| run_seed(seed, false).err()));
        match found {
            Some(failure) => println!("{mutant:?} is found by seed {}: {}", failure.seed, failure.text),
            None => survivors.push(mutant),
        }
    }
    assert!(survivors.is_empty(), "no seed finds {survivors:?}");
}
