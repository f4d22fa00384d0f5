//! One state for all those between which nothing that can still happen makes a difference. This is what makes the model
//! small, and finite without an end of time: only what remains of a lease counts, and only how far a version is behind.

use super::database::{LATE, NOBODY, NODES, NUMBERS, Number, Row, Statement, Status, TASKS, VERSION};
use super::node::{Answer, Beat, Call, Doing, HANDS, Hand};
use super::protocol::{Mistake, Protocol, State};

impl State {
    pub fn normal(&mut self, p: &Protocol) {
        for node in 0..NODES {
            self.drop_what_is_in_vain(p, node);
        }
        for late in &mut self.late {
            *late = late.filter(|request| self.db.may_change(p, *request));
        }
        for task in 0..TASKS {
            self.clear_row(task);
            self.count_versions_back(task);
        }
        if !p.plain {
            self.change_places(p);
        }
        self.order_numbers();
        self.late.sort_unstable();
    }

    /// Hands that will only hear "lost"; beats that prolong nothing; the number of a fenced node that has nothing left.
    fn drop_what_is_in_vain(&mut self, p: &Protocol, node: u8) {
        for hand in 0..HANDS {
            if self.hand(node, hand).is_some_and(|it| !self.matters(p, node, hand, it)) {
                self.set_hand(node, hand, None);
            }
        }
        let it = self.node_mut(node);
        match it.beat {
            _ if p.makes(Mistake::TrustReplyTime) => {}
            Beat::Sent { worth: 0 } => it.beat = Beat::None,
            Beat::Alive { worth } if worth <= it.may_work => it.beat = Beat::None,
            _ => {}
        }
        if !p.plain && self.db.is_dead(node) && self.node(node).hands().next().is_none() {
            self.begin_anew(p, node);
        }
    }

    fn matters(&self, p: &Protocol, node: u8, hand: u8, it: Hand) -> bool {
        match it.doing {
            Doing::Executing | Doing::Claiming(Call::Answered(Answer::Changed | Answer::Recognised)) => true,
            Doing::Claiming(Call::Answered(Answer::Lost)) => false,
            Doing::Claiming(_) => {
                self.db.may_change(p, it.request(node, hand))
                    || self.look_for_claimed(p, node, hand) == Answer::Recognised
            }
            // In the plain model one can see them refused, or recognised.
            Doing::ToGiveBack | Doing::Settling(..) => {
                self.db.may_change(p, it.request(node, hand))
                    || p.plain && (self.is_settled(node, it) || self.db.is_dead(node))
            }
        }
    }

    /// The row is at `VERSION` again. Who is behind it is so for good, and how far counts only if it may be recognised.
    fn count_versions_back(&mut self, task: u8) {
        let row = &mut self.db.rows[task as usize];
        let newer = row.version - VERSION;
        row.version = VERSION;
        if newer == 0 {
            return;
        }
        let Row { status, owner, .. } = *row;
        for (node, it) in (0..).zip(&mut self.nodes) {
            for hand in it.hands.iter_mut().flatten().filter(|hand| hand.task == task) {
                let version = hand.version.saturating_sub(newer);
                let counts = version == VERSION || version + 1 == VERSION && owner == node;
                hand.version = if counts && !status.is_final() { version } else { 0 };
            }
        }
        for late in self.late.iter_mut().flatten() {
            match &mut late.statement {
                Statement::Claim { task: t, version, .. } | Statement::Settle { task: t, version, .. }
                    if *t == task =>
                {
                    *version = version.saturating_sub(newer);
                }
                _ => {}
            }
        }
    }

    /// Without what nobody will read.
    fn clear_row(&mut self, task: u8) {
        let row = *self.db.row(task);
        let settles = |hand: &Hand| hand.task == task && matches!(hand.doing, Doing::Settling(..));
        let owner_counts = match row.status {
            Status::Pending => row.owner < NODES && self.node(row.owner).hands().any(settles),
            Status::Running => true,
            _ => false,
        };
        let row = &mut self.db.rows[task as usize];
        if !owner_counts {
            (row.owner, row.rescued) = (NOBODY, false);
        }
        if row.status != Status::Running || row.owner >= NODES {
            row.moment = 0;
        }
        if row.status.is_final() {
            row.crashes = 0;
        }
    }

    /// Which node is called the first, and which task, makes no difference.
    fn change_places(&mut self, p: &Protocol) {
        let rank = |row: &Row| (row.status, row.cancel_requested, row.crashes, row.owner == NOBODY);
        if p.tasks == 2 && rank(&self.db.rows[0]) > rank(&self.db.rows[1]) {
            self.change_tasks();
        }
        if self.nodes[0] > self.nodes[1] {
            self.nodes.swap(0, 1);
            self.db.numbers.swap(0, 1);
            self.renumber(|n| if n < NODES { 1 - n } else { n });
        }
    }

    fn change_tasks(&mut self) {
        self.db.rows.swap(0, 1);
        for row in self.db.rows.iter_mut().filter(|row| row.owner < NODES && row.status == Status::Running) {
            row.moment = 1 - row.moment;
        }
        for node in &mut self.nodes {
            node.hands.swap(0, 1);
            node.hands.iter_mut().flatten().for_each(|hand| hand.task = 1 - hand.task);
        }
        for late in self.late.iter_mut().flatten() {
            match &mut late.statement {
                Statement::Claim { task, moment, .. } => (*task, *moment) = (1 - *task, 1 - *moment),
                Statement::Settle { task, .. } => *task = 1 - *task,
                Statement::Beat => {}
            }
        }
    }

    pub fn renumber(&mut self, to: impl Fn(u8) -> u8) {
        for row in &mut self.db.rows {
            row.owner = to(row.owner);
        }
        for late in self.late.iter_mut().flatten() {
            late.number = to(late.number);
        }
    }

    pub fn names(&self, number: u8) -> bool {
        self.named().contains(&number)
    }

    /// The numbers in rows and late statements.
    fn named(&self) -> [u8; TASKS as usize + LATE] {
        let late = |i: usize| self.late[i].map_or(NOBODY, |late| late.number);
        [self.db.rows[0].owner, self.db.rows[1].owner, late(0), late(1)]
    }

    /// Of earlier lives only those count that hold something or may still get it: in the order in which they are named.
    fn order_numbers(&mut self) {
        let numbers = self.db.numbers;
        self.db.numbers[NODES as usize..].fill(Number::FORGOTTEN);
        let mut order = [NOBODY; NUMBERS as usize];
        let mut next = NODES;
        for n in self.named() {
            if n >= NODES && n != NOBODY && order[n as usize] == NOBODY {
                order[n as usize] = next;
                self.db.numbers[next as usize] = numbers[n as usize];
                next += 1;
            }
        }
        if next > NODES {
            self.renumber(|n| if n >= NODES && n != NOBODY { order[n as usize] } else { n });
        }
        for number in &mut self.db.numbers {
            number.still *= u8::from(!number.dead);
        }
    }
}
