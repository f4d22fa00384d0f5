//! The database: tasks, node numbers, and the statements on them. A statement is atomic; its answer is whether it changed
//! a row.

use super::protocol::{Mistake, Protocol};

pub const NODES: u8 = 2;
pub const TASKS: u8 = 2;
/// Copies of statements on their way of which nobody expects an answer, at the most.
pub const LATE: usize = 2;
/// The numbers that the nodes have now, and those of earlier lives: as many as rows and late statements can name.
pub const NUMBERS: u8 = NODES + TASKS + LATE as u8;
pub const NOBODY: u8 = u8::MAX;
/// Where every row's version is put back to (see `normal.rs`).
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

/// A task. It is in the task table until it ends; `ends` counts the records of that elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    pub status: Status,
    pub version: u8,
    pub owner: u8,
    /// Which of its owner's claims got it.
    pub moment: u8,
    pub cancel_requested: bool,
    pub crashes: u8,
    pub ends: u8,
    /// It was a rescuer who put it back, though the owner's number is still on it.
    pub rescued: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number {
    pub dead: bool,
    /// For how long its beat has stood still, up to a lease.
    pub still: u8,
}

impl Number {
    pub const FRESH: Self = Self { dead: false, still: 0 };
    /// One that nothing refers to any more.
    pub const FORGOTTEN: Self = Self { dead: true, still: 0 };
}

/// How an attempt ended. Again, postponed and given back are one thing here: the task waits once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    Done,
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Statement {
    Beat,
    Claim { task: u8, version: u8, moment: u8 },
    Settle { task: u8, version: u8, outcome: Outcome },
}

/// A statement on its way to the database, in the name of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    pub number: u8,
    pub statement: Statement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Database {
    pub rows: [Row; TASKS as usize],
    pub numbers: [Number; NUMBERS as usize],
    /// A claim or settle of a dead number has changed a row.
    pub written_after_fence: bool,
}

impl Database {
    /// Of the tasks that a smaller model leaves out, it says that they ended long ago.
    pub fn new(tasks: u8) -> Self {
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
        let row = |task| if task < tasks as usize { pending } else { Row { status: Status::Done, ends: 1, ..pending } };
        let number = |n| if n < NODES as usize { Number::FRESH } else { Number::FORGOTTEN };
        Self { rows: std::array::from_fn(row), numbers: std::array::from_fn(number), written_after_fence: false }
    }

    pub fn row(&self, task: u8) -> &Row {
        &self.rows[task as usize]
    }

    fn row_mut(&mut self, task: u8) -> &mut Row {
        &mut self.rows[task as usize]
    }

    pub fn is_dead(&self, number: u8) -> bool {
        self.numbers[number as usize].dead
    }

    /// Whether its beat has stood still for a whole lease.
    fn is_silent(&self, p: &Protocol, number: u8) -> bool {
        self.numbers[number as usize].still >= p.lease
    }

    /// The compare of every compare-and-set that a node sends in its own name.
    pub fn would_change(&self, p: &Protocol, request: Request) -> bool {
        let Request { number, statement } = request;
        let alive = !self.is_dead(number) || p.makes(Mistake::WriteWithoutFence);
        match statement {
            Statement::Beat => !self.is_dead(number),
            Statement::Claim { task, version, .. } => {
                let row = self.row(task);
                row.status == Status::Pending && row.version == version && alive
            }
            Statement::Settle { task, version, .. } => {
                let row = self.row(task);
                row.status == Status::Running
                    && row.owner == number
                    && (row.version == version || p.makes(Mistake::SettleWithoutVersion))
                    && (alive || p.makes(Mistake::SettleWithoutFence))
            }
        }
    }

    /// Whether it would now, or may later.
    pub fn may_change(&self, p: &Protocol, request: Request) -> bool {
        self.would_change(p, request)
            || match request.statement {
                Statement::Settle { task, .. } if p.makes(Mistake::SettleWithoutVersion) => {
                    !self.row(task).status.is_final() && !self.is_dead(request.number)
                }
                Statement::Settle { task, .. } if p.makes(Mistake::EndWithoutLooking) => self.row(task).ends < 2,
                _ => false,
            }
    }

    pub fn execute(&mut self, p: &Protocol, request: Request) -> bool {
        let changes = self.would_change(p, request);
        match request.statement {
            Statement::Settle { task, outcome: Outcome::Done, .. } if p.makes(Mistake::EndWithoutLooking) => {
                self.row_mut(task).end(Status::Done);
            }
            _ if !changes => {}
            Statement::Beat => self.numbers[request.number as usize].still = 0,
            Statement::Claim { task, moment, .. } => self.row_mut(task).claim(request.number, moment),
            Statement::Settle { task, outcome: Outcome::Done, .. } => self.row_mut(task).end(Status::Done),
            Statement::Settle { task, outcome: Outcome::Again, .. } => self.row_mut(task).put_back(),
        }
        self.written_after_fence |= changes && self.is_dead(request.number);
        changes
    }

    pub fn may_fence(&self, p: &Protocol, number: u8) -> bool {
        !self.is_dead(number) && (self.is_silent(p, number) || p.makes(Mistake::FenceWithoutWatching))
    }

    pub fn fence(&mut self, number: u8) {
        self.numbers[number as usize].dead = true;
    }

    pub fn may_rescue(&self, p: &Protocol, task: u8) -> bool {
        let Row { status, owner, .. } = *self.row(task);
        status == Status::Running
            && (self.is_dead(owner) || p.makes(Mistake::RescueWithoutFence) && self.is_silent(p, owner))
    }

    pub fn rescue(&mut self, p: &Protocol, task: u8) {
        let row = self.row_mut(task);
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

    pub fn may_cancel(&self, task: u8) -> bool {
        let row = self.row(task);
        !row.status.is_final() && !row.cancel_requested
    }

    pub fn cancel(&mut self, p: &Protocol, task: u8) {
        let row = self.row_mut(task);
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

    /// It waits again, its owner's number still on it. Or ends, if a person wants that.
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
