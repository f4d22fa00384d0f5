//! What each step does.

use super::database::{NODES, NUMBERS, Number, Outcome, Request, Statement, Status};
use super::node::{Answer, Beat, Call, Doing, HANDS, Hand, Node};
use super::protocol::{Mistake, Protocol, State, Step};

impl State {
    pub fn node(&self, node: u8) -> &Node {
        &self.nodes[node as usize]
    }

    pub fn node_mut(&mut self, node: u8) -> &mut Node {
        &mut self.nodes[node as usize]
    }

    pub fn hand(&self, node: u8, hand: u8) -> Option<Hand> {
        self.nodes[node as usize].hands[hand as usize]
    }

    pub fn set_hand(&mut self, node: u8, hand: u8, to: Option<Hand>) {
        self.nodes[node as usize].hands[hand as usize] = to;
    }

    pub fn take(&mut self, p: &Protocol, step: Step) {
        match step {
            Step::Tick => self.tick(p),
            Step::Fence { number } => self.db.fence(number),
            Step::Rescue { task } => self.db.rescue(p, task),
            Step::Cancel { task } => self.db.cancel(p, task),
            Step::Crash { node } => self.crash(p, node),
            Step::SendBeat { node } => self.node_mut(node).beat = Beat::Sent { worth: p.lease },
            Step::ExecuteBeat { node } => self.execute_beat(p, node),
            Step::HearOfBeat { node } => self.hear_of_beat(p, node),
            Step::Claim { node, task } => self.take_up(p, node, task, Doing::Claiming(Call::Sent)),
            Step::Sweep { node, task } => self.take_up(p, node, task, Doing::Settling(Outcome::Again, Call::Sent)),
            Step::Settle { node, hand, outcome } => {
                self.set_hand(node, hand, self.hand(node, hand).map(|it| it.settling(outcome)));
            }
            Step::Execute { node, hand } => self.execute(p, node, hand),
            Step::Hear { node, hand } => self.hear(p, node, hand),
            Step::SendAgain { node, hand } => self.send_again(p, node, hand),
            Step::GiveUp { node, hand } => {
                self.send_again(p, node, hand);
                self.set_hand(node, hand, None);
            }
            Step::ExecuteLate { which } => self.execute_late(p, which),
        }
    }

    fn tick(&mut self, p: &Protocol) {
        for node in &mut self.nodes {
            node.tick();
            if node.may_work == 0 && !p.makes(Mistake::WorkOn) {
                node.stop();
            }
        }
        for number in &mut self.db.numbers {
            number.still = (number.still + 1).min(p.lease);
        }
    }

    /// All that it had in memory is gone. What it had sent may still be executed.
    fn crash(&mut self, p: &Protocol, node: u8) {
        for hand in 0..HANDS {
            self.leave_on_its_way(p, node, hand);
        }
        self.node_mut(node).hands = [None; HANDS as usize];
        self.begin_anew(p, node);
    }

    /// Under a number that nobody ever had. The old one goes to the earlier lives.
    pub fn begin_anew(&mut self, p: &Protocol, node: u8) {
        let old = (NODES..NUMBERS).find(|n| !self.names(*n)).expect("a place for every row and every late statement");
        self.db.numbers[old as usize] = self.db.numbers[node as usize];
        self.db.numbers[node as usize] = Number::FRESH;
        self.renumber(|n| if n == node { old } else { n });
        let mut hands = self.node(node).hands;
        let answered = Doing::Claiming(Call::Answered(Answer::Changed));
        for hand in &mut hands {
            *hand = hand.filter(|hand| p.makes(Mistake::StartUnderNewNumber) && hand.doing == answered);
        }
        *self.node_mut(node) = Node { hands, ..Node::new(p.lease) };
    }

    /// A fenced node learns it here. If it learnt it later, it could as well have sent its beat later.
    fn execute_beat(&mut self, p: &Protocol, node: u8) {
        let alive = self.db.execute(p, Request { number: node, statement: Statement::Beat });
        match self.node(node).beat {
            Beat::Sent { worth } if alive => self.node_mut(node).beat = Beat::Alive { worth },
            _ => self.begin_anew(p, node),
        }
    }

    fn hear_of_beat(&mut self, p: &Protocol, node: u8) {
        let node = self.node_mut(node);
        if let Beat::Alive { worth } = node.beat {
            let worth = if p.makes(Mistake::TrustReplyTime) { p.lease } else { worth };
            node.may_work = node.may_work.max(worth);
        }
        node.beat = Beat::None;
    }

    fn take_up(&mut self, p: &Protocol, node: u8, task: u8, doing: Doing) {
        if let Some(hand) = p.free_hand(self.node(node), task) {
            let version = self.db.row(task).version;
            self.set_hand(node, hand, Some(Hand { task, version, doing }));
        }
    }

    fn execute(&mut self, p: &Protocol, node: u8, hand: u8) {
        let Some(it) = self.hand(node, hand) else { return };
        let call = match (it.doing, it.call()) {
            // First the claim, then a look for what an earlier copy of it got. The other way round, that copy could get
            // it in between.
            (Doing::Claiming(_), Some(call @ (Call::SentAgain | Call::HalfWay))) => {
                let looks = (call == Call::HalfWay) != p.makes(Mistake::LookBeforeClaim);
                let answer = if looks { self.look_for_claimed(p, node, hand) } else { self.change(p, node, hand) };
                match answer {
                    Answer::Lost if call == Call::SentAgain => Call::HalfWay,
                    answer => Call::Answered(answer),
                }
            }
            (_, call) => Call::Answered(match self.change(p, node, hand) {
                Answer::Lost if call == Some(Call::SentAgain) && self.is_settled(node, it) => Answer::Recognised,
                answer => answer,
            }),
        };
        self.set_hand(node, hand, Some(it.with(call)));
    }

    fn change(&mut self, p: &Protocol, node: u8, hand: u8) -> Answer {
        let changed = self.hand(node, hand).is_some_and(|it| self.db.execute(p, it.request(node, hand)));
        if changed { Answer::Changed } else { Answer::Lost }
    }

    pub fn look_for_claimed(&self, p: &Protocol, node: u8, hand: u8) -> Answer {
        let claimed = |it: Hand| {
            let row = self.db.row(it.task);
            row.status == Status::Running
                && row.owner == node
                && row.version == it.version + 1
                && (row.moment == hand || p.makes(Mistake::ClaimWithoutMoment))
        };
        if self.hand(node, hand).is_some_and(claimed) { Answer::Recognised } else { Answer::Lost }
    }

    /// Whether it looks as if an earlier copy of this settle was executed.
    pub fn is_settled(&self, node: u8, it: Hand) -> bool {
        let row = self.db.row(it.task);
        let put_back = row.status == Status::Pending && row.owner == node && row.version == it.version + 1;
        put_back || row.status.is_final()
    }

    fn hear(&mut self, p: &Protocol, node: u8, hand: u8) {
        let Some(it) = self.hand(node, hand) else { return };
        if let Doing::Claiming(Call::Answered(Answer::Changed | Answer::Recognised)) = it.doing {
            let starts = self.node(node).may_work > 0 || p.makes(Mistake::StartWithoutLease);
            let doing = if starts { Doing::Executing } else { Doing::ToGiveBack };
            return self.set_hand(node, hand, Some(Hand { version: it.version + 1, doing, ..it }));
        }
        self.set_hand(node, hand, None);
        if p.makes(Mistake::ForgetById) && matches!(it.doing, Doing::Settling(..)) {
            self.node_mut(node).hands = [None; HANDS as usize];
        }
    }

    /// The answer was lost, or its question, or they will be.
    fn send_again(&mut self, p: &Protocol, node: u8, hand: u8) {
        self.leave_on_its_way(p, node, hand);
        self.set_hand(node, hand, self.hand(node, hand).map(|it| it.with(Call::SentAgain)));
    }

    fn leave_on_its_way(&mut self, p: &Protocol, node: u8, hand: u8) {
        let Some(it) = self.hand(node, hand) else { return };
        let on_its_way = matches!(it.call(), Some(Call::Sent | Call::SentAgain | Call::HalfWay));
        if on_its_way && self.late.iter().flatten().count() < p.late {
            self.late[0] = Some(it.request(node, hand));
            self.late.sort_unstable();
        }
    }

    fn execute_late(&mut self, p: &Protocol, which: u8) {
        if let Some(request) = self.late[which as usize].take() {
            self.db.execute(p, request);
        }
    }
}
