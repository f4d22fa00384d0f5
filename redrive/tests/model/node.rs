//! A node: what it has in memory, and which answers it waits for.

use super::database::{Outcome, Request, Row, Statement};

pub const HANDS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// For how long it may still work, by its own clock.
    pub may_work: u8,
    pub beat: Beat,
    pub hands: [Option<Hand>; HANDS as usize],
}

/// A beat on its way. What it is worth is what remains of the lease that began before it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Beat {
    None,
    Sent { worth: u8 },
    Alive { worth: u8 },
}

/// What a node has to do with a task, at the version that the scan saw (claiming) or that its claim made (thereafter).
///
/// The moment of a claim, which no other claim of this node has, is the index of the hand.
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

/// A statement whose answer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    Sent,
    /// Once more: the answer was lost.
    SentAgain,
    /// A claim that was sent again consists of two statements. This is between them.
    HalfWay,
    Answered(Answer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Changed,
    /// Not changed by this copy, but recognised as what an earlier one did.
    Recognised,
    Lost,
}

impl Node {
    pub fn new(lease: u8) -> Self {
        Self { may_work: lease, beat: Beat::None, hands: [None; HANDS as usize] }
    }

    pub fn hands(&self) -> impl Iterator<Item = &Hand> {
        self.hands.iter().flatten()
    }

    /// Time passes.
    pub fn tick(&mut self) {
        self.may_work = self.may_work.saturating_sub(1);
        if let Beat::Sent { worth } | Beat::Alive { worth } = &mut self.beat {
            *worth = worth.saturating_sub(1);
        }
    }

    /// It may not work any more, and stops its handlers.
    pub fn stop(&mut self) {
        for hand in self.hands.iter_mut().flatten() {
            if hand.doing == Doing::Executing {
                hand.doing = Doing::ToGiveBack;
            }
        }
    }

    /// Whether it will settle this running row sooner or later, by one of its hands that do what `counts`.
    pub fn knows(&self, task: u8, row: &Row, counts: impl Fn(Doing) -> bool) -> bool {
        let mut hands = (0..).zip(&self.hands);
        hands.any(|(h, hand)| hand.is_some_and(|it| counts(it.doing) && it.knows(h, task, row)))
    }
}

impl Hand {
    pub fn call(&self) -> Option<Call> {
        match self.doing {
            Doing::Claiming(call) | Doing::Settling(_, call) => Some(call),
            Doing::Executing | Doing::ToGiveBack => None,
        }
    }

    pub fn with(self, call: Call) -> Self {
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

    /// What it asks of the database: now, or when it comes to that.
    pub fn request(&self, number: u8, h: u8) -> Request {
        let Self { task, version, doing } = *self;
        let statement = match doing {
            Doing::Claiming(_) => Statement::Claim { task, version, moment: h },
            Doing::Settling(outcome, _) => Statement::Settle { task, version, outcome },
            Doing::Executing | Doing::ToGiveBack => Statement::Settle { task, version, outcome: Outcome::Again },
        };
        Request { number, statement }
    }

    fn knows(&self, h: u8, task: u8, row: &Row) -> bool {
        self.task == task
            && match self.doing {
                Doing::Claiming(Call::Answered(Answer::Lost)) | Doing::Settling(_, Call::Answered(_)) => false,
                Doing::Claiming(_) => self.version + 1 == row.version && h == row.moment,
                Doing::Executing | Doing::ToGiveBack | Doing::Settling(..) => self.version == row.version,
            }
    }
}
