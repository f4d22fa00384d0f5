//! The database: task rows, node numbers, and the statements on them. A statement is atomic; whether it changed a row is
//! its answer.

use super::protocol::{Mistake, Protocol};

pub const NODES: usize = 2;
pub const TASKS: usize = 2;
/// The numbers that the nodes have now, then those that earlier incarnations left behind and that still matter.
pub const NUMBERS: usize = NODES + 3;

/// The owner of a row that nobody owns.
pub const NOBODY: u8 = u8::MAX;
/// Every row is at this version: versions are counted backwards from it (see `State::normal`).
pub const VERSION: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    Pending,
    Running,
    Done,
    Cancelled,
    Dead,
}

impl Status {
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

/// A task. Running and pending ones are in the task table; `ends` counts the records of its end elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    pub status: Status,
    pub version: u8,
    pub owner: u8,
    /// Which claim of the owner got it.
    pub moment: u8,
    pub cancel_requested: bool,
    pub crashes: u8,
    pub ends: u8,
    /// Put back by a rescuer, though the owner's number is still on it.
    pub rescued: bool,
}

/// A node's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number {
    pub dead: bool,
    /// For how long its beat has stood still, up to a lease.
    pub still: u8,
}

impl Number {
    pub const FRESH: Self = Self { dead: false, still: 0 };
    /// One that nobody refers to any more.
    pub const FORGOTTEN: Self = Self { dead: true, still: 0 };
}

/// How an attempt ended. Again, postponed and given back are one to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    Done,
    Again,
}

/// What a node asks of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Statement {
    Beat,
    Claim { task: u8, version: u8, moment: u8 },
    Settle { task: u8, version: u8, outcome: Outcome },
}

/// A statement on its way, in the name of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    pub number: u8,
    pub statement: Statement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Database {
    pub rows: [Row; TASKS],
    pub numbers: [Number; NUMBERS],
    /// A claim or settle of a dead number has changed a row.
    pub written_after_fence: bool,
}

impl Database {
    pub fn new(tasks: usize) -> Self {
        let pending = Row {
            status: Status::Pending,
            version: VERSION,
            owner: NOBODY,
            moment: 0,
            cancel_requested: false,
            crashes: 0,
            ends: 0,
            rescued: false,
        };
        // With fewer tasks, the others have ended before it begins.
        let row = |task| if task < tasks { pending } else { Row { status: Status::Done, ends: 1, ..pending } };
        let number = |n| if n < NODES { Number::FRESH } else { Number::FORGOTTEN };
        Self { rows: std::array::from_fn(row), numbers: std::array::from_fn(number), written_after_fence: false }
    }

    pub fn row(&mut self, task: u8) -> &mut Row {
        &mut self.rows[usize::from(task)]
    }

    pub fn number(&mut self, number: u8) -> &mut Number {
        &mut self.numbers[usize::from(number)]
    }

    pub fn is_dead(&self, number: u8) -> bool {
        self.numbers[usize::from(number)].dead
    }

    /// Whether its beat has stood still for a whole lease.
    pub fn is_silent(&self, p: &Protocol, number: u8) -> bool {
        self.numbers[usize::from(number)].still >= p.lease
    }

    pub fn execute(&mut self, p: &Protocol, request: Request) -> bool {
        let Request { number, statement } = request;
        if !self.would_change(p, request) {
            self.end_unseen(p, statement);
            return false;
        }
        let fenced = self.is_dead(number);
        match statement {
            Statement::Beat => self.number(number).still = 0,
            Statement::Claim { task, moment, .. } => self.row(task).claim(number, moment),
            Statement::Settle { task, outcome: Outcome::Done, .. } => self.row(task).end(Status::Done),
            Statement::Settle { task, outcome: Outcome::Again, .. } => self.row(task).put_back(),
        }
        self.written_after_fence |= fenced;
        true
    }

    /// The compare of every compare-and-set that nodes send.
    pub fn would_change(&self, p: &Protocol, Request { number, statement }: Request) -> bool {
        let alive = !self.is_dead(number);
        match statement {
            Statement::Beat => alive,
            Statement::Claim { task, version, .. } => {
                let row = self.rows[usize::from(task)];
                alive && row.status == Status::Pending && row.version == version
            }
            Statement::Settle { task, version, .. } => {
                let row = self.rows[usize::from(task)];
                row.status == Status::Running
                    && row.owner == number
                    && (alive || p.makes(Mistake::SettleWithoutFence))
                    && (row.version == version || p.makes(Mistake::SettleWithoutVersion))
            }
        }
    }

    fn end_unseen(&mut self, p: &Protocol, statement: Statement) {
        if let Statement::Settle { task, outcome: Outcome::Done, .. } = statement
            && p.makes(Mistake::EndWithoutLooking)
        {
            let row = self.row(task);
            row.ends = (row.ends + 1).min(2);
        }
    }

    /// Another node watched this beat stand still for a lease.
    pub fn may_fence(&self, p: &Protocol, number: u8) -> bool {
        !self.is_dead(number) && (self.is_silent(p, number) || p.makes(Mistake::FenceWithoutWatching))
    }

    pub fn fence(&mut self, number: u8) {
        self.number(number).dead = true;
    }

    pub fn may_rescue(&self, p: &Protocol, task: u8) -> bool {
        let row = self.rows[usize::from(task)];
        row.status == Status::Running
            && (self.is_dead(row.owner) || p.makes(Mistake::RescueWithoutFence) && self.is_silent(p, row.owner))
    }

    pub fn rescue(&mut self, p: &Protocol, task: u8) {
        let row = self.row(task);
        row.crashes += 1;
        if row.crashes >= p.max_crashes {
            return row.end(Status::Dead);
        }
        row.put_back();
        if p.makes(Mistake::RescueLeavesOwner) {
            row.rescued = true;
        } else {
            row.owner = NOBODY;
        }
    }

    /// A person cancels.
    pub fn cancel(&mut self, p: &Protocol, task: u8) {
        let row = self.row(task);
        if row.status == Status::Pending {
            return row.end(Status::Cancelled);
        }
        row.cancel_requested = true;
        row.version += u8::from(p.makes(Mistake::CancelBumpsVersion));
    }
}

impl Row {
    fn claim(&mut self, owner: u8, moment: u8) {
        *self = Self { status: Status::Running, version: self.version + 1, owner, moment, rescued: false, ..*self };
    }

    /// Waits again, with its owner's number left on it; or ends, if a person wants that.
    fn put_back(&mut self) {
        if self.cancel_requested {
            return self.end(Status::Cancelled);
        }
        self.status = Status::Pending;
        self.version += 1;
    }

    fn end(&mut self, status: Status) {
        self.status = status;
        self.version += 1;
        self.ends = (self.ends + 1).min(2);
    }
}
