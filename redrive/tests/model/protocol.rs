//! The model: every state that the nodes, the database and the network between them can get into.

use stateright::{Model, Property};

use super::database::{
    Database, NODES, NOBODY, NUMBERS, Number, Outcome, Request, Row, Statement, Status, TASKS, VERSION,
};
use super::node::{Answer, Beat, Call, Doing, HANDS, Hand, Node};

/// Copies of statements that are on their way though nobody waits for their answers.
pub const LATE: usize = 2;

/// What is explored, within which bounds.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub tasks: usize,
    pub hands: usize,
    pub late: usize,
    pub lease: u8,
    pub max_crashes: u8,
    pub faults: Faults,
    pub mistake: Option<Mistake>,
    pub asks: Asks,
}

/// How many faults may still happen. `MANY` is never used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Faults {
    pub crashes: u8,
    pub losses: u8,
}

pub const MANY: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// What must always hold.
    Safety,
    /// What must be possible.
    Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    SettleWithoutVersion,
    SettleWithoutFence,
    FenceWithoutWatching,
    CancelBumpsVersion,
    TrustReplyTime,
    RescueWithoutFence,
    RescueLeavesOwner,
    EndWithoutLooking,
    GiveUpClaim,
    LookBeforeClaim,
    ClaimWithoutMoment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    pub db: Database,
    pub nodes: [Node; NODES],
    pub late: [Option<Request>; LATE],
    pub faults: Faults,
}

/// What a node waits to hear about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Beat,
    Hand(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tick,
    Fence(u8),
    Rescue(u8),
    Cancel(u8),
    SendBeat(u8),
    Claim(u8, u8),
    Finish(u8, u8, Outcome),
    GiveBack(u8, u8),
    Execute(u8, Wire),
    Deliver(u8, Wire),
    Lose(u8, Wire),
    ExecuteLate(u8),
    Crash(u8),
}

impl Protocol {
    pub fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn tasks(&self) -> impl Iterator<Item = u8> + use<> {
        0..self.tasks as u8
    }
}

fn nodes() -> impl Iterator<Item = u8> {
    0..NODES as u8
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let nodes = [Node::new(self.lease); NODES];
        vec![State { db: Database::new(self.tasks), nodes, late: [None; LATE], faults: self.faults }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        steps.extend((0..NUMBERS as u8).filter(|n| state.db.may_fence(self, *n)).map(Step::Fence));
        steps.extend(self.tasks().filter(|t| state.db.may_rescue(self, *t)).map(Step::Rescue));
        steps.extend(self.tasks().filter(|t| state.may_cancel(*t)).map(Step::Cancel));
        steps.extend((0..LATE as u8).filter(|i| state.late[usize::from(*i)].is_some()).map(Step::ExecuteLate));
        for node in nodes() {
            self.node_steps(state, node, steps);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = *state;
        next.take(self, step)?;
        next.normal(self);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        match self.asks {
            Asks::Safety => super::properties::safety(),
            Asks::Reach => super::properties::reach(),
        }
    }
}

impl Protocol {
    fn node_steps(&self, state: &State, node: u8, steps: &mut Vec<Step>) {
        let it = &state.nodes[usize::from(node)];
        if state.faults.crashes > 0 {
            steps.push(Step::Crash(node));
        }
        match it.beat {
            Beat::Idle => steps.push(Step::SendBeat(node)),
            Beat::Sent { .. } => steps.push(Step::Execute(node, Wire::Beat)),
            Beat::Alive { .. } | Beat::Fenced => steps.push(Step::Deliver(node, Wire::Beat)),
        }
        if it.beat != Beat::Idle && state.faults.losses > 0 {
            steps.push(Step::Lose(node, Wire::Beat));
        }
        if it.may_work > 0 && it.hands[..self.hands].contains(&None) {
            let pending = |t: &u8| state.db.rows[usize::from(*t)].status == Status::Pending;
            steps.extend(self.tasks().filter(pending).map(|t| Step::Claim(node, t)));
        }
        for (h, hand) in it.hands.iter().enumerate() {
            if let Some(hand) = hand {
                hand_steps(state, node, h as u8, hand, steps);
            }
        }
    }
}

fn hand_steps(state: &State, node: u8, h: u8, hand: &Hand, steps: &mut Vec<Step>) {
    match hand.doing {
        Doing::Executing => {
            steps.extend([Outcome::Done, Outcome::Again].map(|outcome| Step::Finish(node, h, outcome)));
        }
        Doing::ToGiveBack if state.nodes[usize::from(node)].may_work > 0 => steps.push(Step::GiveBack(node, h)),
        _ => {}
    }
    match hand.call() {
        None => return,
        Some(Call::Answered(_)) => steps.push(Step::Deliver(node, Wire::Hand(h))),
        Some(_) => steps.push(Step::Execute(node, Wire::Hand(h))),
    }
    // "Lost" stays the answer, however often it is asked.
    if state.faults.losses > 0 && hand.call() != Some(Call::Answered(Answer::Lost)) {
        steps.push(Step::Lose(node, Wire::Hand(h)));
    }
}

impl State {
    fn may_cancel(&self, task: u8) -> bool {
        let row = self.db.rows[usize::from(task)];
        !row.status.is_final() && !row.cancel_requested
    }

    fn node(&mut self, node: u8) -> &mut Node {
        &mut self.nodes[usize::from(node)]
    }

    fn hand(&mut self, node: u8, hand: u8) -> &mut Option<Hand> {
        &mut self.nodes[usize::from(node)].hands[usize::from(hand)]
    }

    /// `None`: out of bounds.
    fn take(&mut self, p: &Protocol, step: Step) -> Option<()> {
        match step {
            Step::Tick => self.tick(p),
            Step::Fence(number) => self.db.fence(number),
            Step::Rescue(task) => self.db.rescue(p, task),
            Step::Cancel(task) => self.db.cancel(p, task),
            Step::SendBeat(node) => self.node(node).beat = Beat::Sent { worth: p.lease },
            Step::Claim(node, task) => self.claim(node, task)?,
            Step::Finish(node, h, outcome) => *self.hand(node, h) = self.hand(node, h).map(|it| it.settling(outcome)),
            Step::GiveBack(node, h) => *self.hand(node, h) = self.hand(node, h).map(|it| it.settling(Outcome::Again)),
            Step::Execute(node, Wire::Beat) => self.execute_beat(p, node),
            Step::Execute(node, Wire::Hand(h)) => self.execute_call(p, node, h)?,
            Step::Deliver(node, Wire::Beat) => self.deliver_beat(p, node)?,
            Step::Deliver(node, Wire::Hand(h)) => self.deliver_answer(node, h)?,
            Step::Lose(node, Wire::Beat) => self.lose_beat(p, node),
            Step::Lose(node, Wire::Hand(h)) => self.lose_answer(p, node, h)?,
            Step::ExecuteLate(i) => {
                let request = self.late[usize::from(i)].take()?;
                self.db.execute(p, request);
            }
            Step::Crash(node) => self.crash(p, node)?,
        }
        Some(())
    }

    fn tick(&mut self, p: &Protocol) {
        self.nodes.iter_mut().for_each(Node::tick);
        for number in &mut self.db.numbers {
            number.still = (number.still + 1).min(p.lease);
        }
    }

    fn claim(&mut self, node: u8, task: u8) -> Option<()> {
        let version = self.db.row(task).version;
        let free = self.node(node).hands.iter_mut().find(|hand| hand.is_none())?;
        *free = Some(Hand { task, version, doing: Doing::Claiming(Call::Sent) });
        Some(())
    }

    fn execute_beat(&mut self, p: &Protocol, node: u8) {
        let alive = self.db.execute(p, Request { number: node, statement: Statement::Beat });
        let beat = &mut self.node(node).beat;
        *beat = match *beat {
            Beat::Sent { worth } if alive => Beat::Alive { worth },
            _ => Beat::Fenced,
        };
    }

    fn execute_call(&mut self, p: &Protocol, node: u8, h: u8) -> Option<()> {
        let hand = (*self.hand(node, h))?;
        let answer = match (hand.doing, hand.call()?) {
            (Doing::Claiming(_), Call::SentAgain) => return self.begin_repeated_claim(p, node, h, hand),
            (Doing::Claiming(_), Call::HalfWay) => self.end_repeated_claim(p, node, h, hand)?,
            (_, call) => self.change(p, node, h, hand)?.or_else(|| {
                let recognised = call == Call::SentAgain && self.is_settled_by(node, hand);
                recognised.then_some(Answer::Recognised)
            }),
        };
        *self.hand(node, h) = Some(hand.with_call(Call::Answered(answer.unwrap_or(Answer::Lost))));
        Some(())
    }

    fn change(&mut self, p: &Protocol, node: u8, h: u8, hand: Hand) -> Option<Option<Answer>> {
        let request = hand.request(node, h)?;
        Some(self.db.execute(p, request).then_some(Answer::Changed))
    }

    /// A repeated claim first claims, and then looks for what an earlier copy got. Not the other way round.
    fn begin_repeated_claim(&mut self, p: &Protocol, node: u8, h: u8, hand: Hand) -> Option<()> {
        let answer = if p.makes(Mistake::LookBeforeClaim) {
            self.look_for_claimed(p, node, h, hand)
        } else {
            self.change(p, node, h, hand)?
        };
        *self.hand(node, h) = Some(hand.with_call(answer.map_or(Call::HalfWay, Call::Answered)));
        Some(())
    }

    fn end_repeated_claim(&mut self, p: &Protocol, node: u8, h: u8, hand: Hand) -> Option<Option<Answer>> {
        if p.makes(Mistake::LookBeforeClaim) {
            self.change(p, node, h, hand)
        } else {
            Some(self.look_for_claimed(p, node, h, hand))
        }
    }

    fn look_for_claimed(&self, p: &Protocol, node: u8, h: u8, hand: Hand) -> Option<Answer> {
        let row = self.db.rows[usize::from(hand.task)];
        let ours = row.status == Status::Running
            && row.owner == node
            && row.version == hand.version + 1
            && (row.moment == h || p.makes(Mistake::ClaimWithoutMoment));
        ours.then_some(Answer::Recognised)
    }

    /// An earlier copy of this settle put it back, or it has ended.
    fn is_settled_by(&self, node: u8, hand: Hand) -> bool {
        let row = self.db.rows[usize::from(hand.task)];
        let put_back = row.status == Status::Pending && row.owner == node && row.version == hand.version + 1;
        put_back || row.status.is_final()
    }

    fn deliver_beat(&mut self, p: &Protocol, node: u8) -> Option<()> {
        let it = self.node(node);
        let worth = match it.beat {
            Beat::Fenced => return self.start_anew(p, node),
            Beat::Alive { .. } if p.makes(Mistake::TrustReplyTime) => p.lease,
            Beat::Alive { worth } | Beat::Sent { worth } => worth,
            Beat::Idle => 0,
        };
        it.may_work = it.may_work.max(worth);
        it.beat = Beat::Idle;
        Some(())
    }

    fn deliver_answer(&mut self, node: u8, h: u8) -> Option<()> {
        let works = self.node(node).may_work > 0;
        let hand = (*self.hand(node, h))?;
        *self.hand(node, h) = match hand.doing {
            Doing::Claiming(Call::Answered(Answer::Changed | Answer::Recognised)) => {
                let doing = if works { Doing::Executing } else { Doing::ToGiveBack };
                Some(Hand { version: hand.version + 1, doing, ..hand })
            }
            _ => None,
        };
        Some(())
    }

    fn lose_beat(&mut self, p: &Protocol, node: u8) {
        if let Beat::Sent { .. } = self.node(node).beat {
            self.leave(p, Request { number: node, statement: Statement::Beat });
        }
        self.node(node).beat = Beat::Idle;
        self.faults.lose();
    }

    /// The answer does not come. What was sent may still be executed; the node sends it again.
    fn lose_answer(&mut self, p: &Protocol, node: u8, h: u8) -> Option<()> {
        let hand = (*self.hand(node, h))?;
        if !matches!(hand.call()?, Call::Answered(_)) {
            self.leave(p, hand.request(node, h)?);
        }
        let gives_up = p.makes(Mistake::GiveUpClaim) && matches!(hand.doing, Doing::Claiming(_));
        *self.hand(node, h) = (!gives_up).then(|| hand.with_call(Call::SentAgain));
        self.faults.lose();
        Some(())
    }

    /// Nobody waits for this one any more. There is room for some such.
    fn leave(&mut self, p: &Protocol, request: Request) {
        if let Some(room) = self.late[..p.late].iter_mut().find(|late| late.is_none()) {
            *room = Some(request);
        }
    }

    fn crash(&mut self, p: &Protocol, node: u8) -> Option<()> {
        self.faults.crash();
        let it = *self.node(node);
        for (h, hand) in it.hands.iter().enumerate() {
            let Some(hand) = hand else { continue };
            if let Some(Call::Sent | Call::SentAgain | Call::HalfWay) = hand.call() {
                self.leave(p, hand.request(node, h as u8)?);
            }
        }
        if let Beat::Sent { .. } = it.beat {
            self.leave(p, Request { number: node, statement: Statement::Beat });
        }
        self.start_anew(p, node)
    }

    /// With nothing in memory, under a number that nobody ever had.
    fn start_anew(&mut self, p: &Protocol, node: u8) -> Option<()> {
        self.forget_numbers();
        let old = (NODES as u8..NUMBERS as u8).find(|n| self.db.numbers[usize::from(*n)] == Number::FORGOTTEN)?;
        self.db.numbers.swap(usize::from(node), usize::from(old));
        *self.db.number(node) = Number::FRESH;
        self.renumber(|n| if n == node { old } else { n });
        *self.node(node) = Node::new(p.lease);
        Some(())
    }

    fn renumber(&mut self, to: impl Fn(u8) -> u8) {
        for row in &mut self.db.rows {
            row.owner = to(row.owner);
        }
        for late in self.late.iter_mut().flatten() {
            late.number = to(late.number);
        }
    }

    fn forget_numbers(&mut self) {
        for n in NODES..NUMBERS {
            let owns = |row: &Row| usize::from(row.owner) == n && row.status == Status::Running;
            let named = |late: &Option<Request>| late.is_some_and(|late| usize::from(late.number) == n);
            if !self.db.rows.iter().any(owns) && !self.late.iter().any(named) {
                self.db.numbers[n] = Number::FORGOTTEN;
            }
        }
    }
}

impl Faults {
    fn crash(&mut self) {
        self.crashes -= u8::from(self.crashes != MANY);
    }

    fn lose(&mut self) {
        self.losses -= u8::from(self.losses != MANY);
    }
}

/// One state for all that cannot be told apart from now on.
impl State {
    fn normal(&mut self, p: &Protocol) {
        for late in &mut self.late {
            *late = late.filter(|request| self.db.may_still_change(p, *request));
        }
        for task in 0..TASKS as u8 {
            self.normal_row(task);
        }
        self.forget_numbers();
        for number in &mut self.db.numbers {
            if number.dead {
                number.still = 0;
            }
        }
        self.order_old_numbers();
        self.late.sort_unstable();
    }

    fn normal_row(&mut self, task: u8) {
        let row = *self.db.row(task);
        let newer = row.version - VERSION.min(row.version);
        self.db.row(task).version -= newer;
        self.count_back(task, newer);
        let row = *self.db.row(task);
        let to_recognise = usize::from(row.owner) < NODES && self.is_being_settled(row.owner, task);
        let row = self.db.row(task);
        if row.status != Status::Running {
            row.moment = 0;
            if !to_recognise {
                row.owner = NOBODY;
                row.rescued = false;
            }
        } else if usize::from(row.owner) >= NODES {
            row.moment = 0;
        }
        if row.status.is_final() {
            row.crashes = 0;
        }
    }

    fn is_being_settled(&self, node: u8, task: u8) -> bool {
        let settles = |hand: &Hand| hand.task == task && matches!(hand.doing, Doing::Settling(..));
        self.nodes[usize::from(node)].hands.iter().flatten().any(settles)
    }

    /// Versions matter only by how far they are behind the row.
    fn count_back(&mut self, task: u8, newer: u8) {
        for hand in self.nodes.iter_mut().flat_map(|node| node.hands.iter_mut().flatten()) {
            if hand.task == task {
                hand.version = hand.version.saturating_sub(newer);
            }
        }
        for late in self.late.iter_mut().flatten() {
            if let Statement::Claim { task: t, version, .. } | Statement::Settle { task: t, version, .. } =
                &mut late.statement
                && *t == task
            {
                *version = version.saturating_sub(newer);
            }
        }
    }

    /// Old numbers in the order in which they are named.
    fn order_old_numbers(&mut self) {
        let mut order = [NOBODY; NUMBERS];
        let mut next = NODES;
        let named = self.db.rows.map(|row| row.owner).into_iter();
        let named: Vec<u8> = named.chain(self.late.iter().flatten().map(|late| late.number)).collect();
        for n in named.into_iter().filter(|n| *n != NOBODY).map(usize::from) {
            if n >= NODES && order[n] == NOBODY {
                order[n] = next as u8;
                next += 1;
            }
        }
        let old = self.db.numbers;
        self.db.numbers[NODES..].fill(Number::FORGOTTEN);
        for n in NODES..NUMBERS {
            if order[n] != NOBODY {
                self.db.numbers[usize::from(order[n])] = old[n];
            }
        }
        self.renumber(|n| if usize::from(n) < NODES || n == NOBODY { n } else { order[usize::from(n)] });
    }
}

impl Database {
    /// Whether it can still have an effect, now or later.
    fn may_still_change(&self, p: &Protocol, request: Request) -> bool {
        let again = match request.statement {
            Statement::Settle { task, outcome, .. } => {
                let row = self.rows[usize::from(task)];
                p.makes(Mistake::SettleWithoutVersion) && !row.status.is_final() && !self.is_dead(request.number)
                    || p.makes(Mistake::EndWithoutLooking) && outcome == Outcome::Done && row.ends < 2
            }
            _ => false,
        };
        again || self.would_change(p, request)
    }
}
const _: () = assert!(HANDS == 2);
