//! Each planted defect is found by the default number of seeds.

use super::simulation::run_seed;
use crate::mutant::{Mutant, with};

const MUTANTS: [Mutant; 12] = [
    Mutant::JumpsTheLine,
    Mutant::LineIsNotServed,
    Mutant::LosesAPermit,
    Mutant::SendsWhatIsDue,
    Mutant::ResendsFromTheSecond,
    Mutant::AnyLinkMayClose,
    Mutant::OldPermitsCount,
    Mutant::DueIsEarly,
    Mutant::NeverArmsAgain,
    Mutant::OldReceiptCounts,
    Mutant::DoubtIsDenied,
    Mutant::DialsTwice,
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
