//! The client's memory with its steps apart: asking, serving, and the end of a turn, as threads interleave them.

use std::cell::{Cell, RefCell};

use super::world::{Event, World};
use crate::policy::budget::{Allowance, Claim, Memory, Turn, Turns, Usage};

pub(super) struct Budget {
    allowance: Allowance,
    word: Cell<u64>,
    turns: RefCell<Turns<usize>>,
}

impl Budget {
    pub(super) fn new(limit: Option<usize>) -> Self {
        Self { allowance: Allowance::new(limit), word: Cell::new(0), turns: RefCell::new(Turns::new()) }
    }

    pub(super) fn usage(&self) -> Usage {
        Usage::from_word(self.word.get())
    }

    /// Memory that others take, beyond the rules.
    pub(super) fn press(&self, charge: usize) {
        self.word.set(self.word.get() + Usage::step(charge));
    }

    pub(super) fn relieve(&self, charge: usize) {
        self.word.set(self.word.get() - Usage::step(charge));
    }
}

impl Memory for Budget {
    fn allowance(&self) -> Allowance {
        self.allowance
    }

    fn take(&self, charge: usize, claim: Claim) -> bool {
        match self.allowance.claim(self.usage(), charge, claim) {
            Some(usage) => {
                self.word.set(usage.word());
                true
            }
            None => false,
        }
    }

    fn give_back(&self, charge: usize) -> bool {
        let contended = self.usage().contended;
        self.word.set(self.word.get() - Usage::step(charge));
        contended
    }
}

impl World {
    pub(super) fn budget_ask(&mut self, producer: usize) {
        self.budget.turns.borrow_mut().ask(producer);
        self.budget.word.set(self.budget.word.get() | Usage::CONTENDED);
        let delay = self.pause();
        self.after(delay, Event::BudgetServe);
    }

    pub(super) fn budget_serve(&mut self) {
        if self.budget.turns.borrow_mut().begin() {
            self.budget_next();
        }
    }

    fn budget_next(&mut self) {
        let next = self.budget.turns.borrow_mut().next();
        let Some(producer) = next else {
            self.budget.word.set(self.budget.word.get() & !Usage::CONTENDED);
            return;
        };
        let (turn, served) = self.producers[producer].admission.turn(&self.budget);
        self.note("turn", producer as u64, turn as u64);
        self.carry_out(producer, served);
        let delay = self.pause();
        self.after(delay, Event::BudgetEnded(producer, turn));
    }

    pub(super) fn budget_ended(&mut self, producer: usize, turn: Turn) {
        let goes_on = self.budget.turns.borrow_mut().ended(producer, turn);
        if goes_on {
            self.budget_next();
        }
    }
}
