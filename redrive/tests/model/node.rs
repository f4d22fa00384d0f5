//! A node: what it has in memory, and what it waits to hear.

use super::database::{Outcome, Request, Statement};

pub const HANDS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// For how long it may still work, by its own clock.
    pub may_work: u8,
    pub beat: Beat,
    /// What it has to do with tasks. A claim's moment is the hand that it is for: no other claim has it meanwhile.
    pub hands: [Option<Hand>; HANDS],
}

/// A beat on its way. `worth` is what remains of the lease that began before it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Beat {
    Idle,
    Sent { worth: u8 },
    Alive { worth: u8 },
    Fenced,
}

/// A task at a version: the one that the scan saw while it is being claimed, the one that the claim made afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hand {
    pub task: u8,
    pub version: u8,
    pub doing: Doing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doing {
    Claiming(Call),
    Executing,
    ToGiveBack,
    Settling(Outcome, Call),
}

/// A statement whose answer the node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    Sent,
    /// Sent once more, because the answer was lost.
    SentAgain,
    /// A repeated claim between its two halves.
    HalfWay,
    Answered(Answer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Changed,
    /// Not changed now, but recognised as what an earlier copy did.
    Recognised,
    Lost,
}

impl Node {
    pub fn new(lease: u8) -> Self {
        Self { may_work: lease, beat: Beat::Idle, hands: [None; HANDS] }
    }

    /// Time passes. Whoever may not work any more stops at once.
    pub fn tick(&mut self) {
        self.may_work = self.may_work.saturating_sub(1);
        if let Beat::Sent { worth } | Beat::Alive { worth } = &mut self.beat {
            *worth = worth.saturating_sub(1);
        }
        if self.may_work == 0 {
            for hand in self.hands.iter_mut().flatten() {
                if hand.doing == Doing::Executing {
                    hand.doing = Doing::ToGiveBack;
                }
            }
        }
    }

    pub fn executes(&self, task: u8) -> usize {
        let live = |hand: &&Hand| hand.task == task && hand.doing == Doing::Executing;
        if self.may_work == 0 { 0 } else { self.hands.iter().flatten().filter(live).count() }
    }
}

impl Hand {
    pub fn call(&self) -> Option<Call> {
        match self.doing {
            Doing::Claiming(call) | Doing::Settling(_, call) => Some(call),
            Doing::Executing | Doing::ToGiveBack => None,
        }
    }

    pub fn with_call(self, call: Call) -> Self {
        let doing = match self.doing {
            Doing::Claiming(_) => Doing::Claiming(call),
            Doing::Settling(outcome, _) => Doing::Settling(outcome, call),
            doing => doing,
        };
        Self { doing, ..self }
    }

    pub fn settling(self, outcome: Outcome) -> Self {
        Self { doing: Doing::Settling(outcome, Call::Sent), ..self }
    }

    /// What it asks of the database.
    pub fn request(&self, number: u8, hand: u8) -> Option<Request> {
        let Self { task, version, doing } = *self;
        let statement = match doing {
            Doing::Claiming(_) => Statement::Claim { task, version, moment: hand },
            Doing::Settling(outcome, _) => Statement::Settle { task, version, outcome },
            Doing::Executing | Doing::ToGiveBack => return None,
        };
        Some(Request { number, statement })
    }

    /// Whether its owner will sooner or later settle the row that is running at this version by this claim.
    pub fn knows(&self, index: u8, task: u8, version: u8, moment: u8) -> bool {
        self.task == task
            && match self.doing {
                Doing::Claiming(Call::Answered(Answer::Lost)) | Doing::Settling(_, Call::Answered(_)) => false,
                Doing::Claiming(_) => self.version + 1 == version && index == moment,
                Doing::Executing | Doing::ToGiveBack | Doing::Settling(..) => self.version == version,
            }
    }
}
