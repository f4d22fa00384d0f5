//! The model: what it consists of, how it can be got wrong, and which steps are possible in a state. What they make of it is
//! in `steps.rs`.

use stateright::{Model, Property};

use super::database::{Database, LATE, NODES, NUMBERS, Outcome, Request, Status, TASKS};
use super::node::{Answer, Beat, Call, Doing, HANDS, Hand, Node};
use super::properties;

/// What is explored, within which bounds.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub tasks: u8,
    /// How often a node may have to do with the same task at once. With two tasks: once.
    pub hands: u8,
    /// How many copies of statements may be on their way of which nobody expects an answer.
    pub late: usize,
    /// In ticks. There is no margin: that is for clocks that drift and handlers that take their time to stop.
    pub lease: u8,
    pub max_crashes: u8,
    /// Whether a node may give up on a claim, and sweeps up rows that are its own without its knowing.
    pub sweeps: bool,
    pub mistake: Option<Mistake>,
    /// Whether states are kept apart that only a reader can tell apart.
    pub plain: bool,
}

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Neither a claim nor a settle looks at the fence.
    WriteWithoutFence,
    /// A claim sent again takes for its own whatever its node has claimed.
    ClaimWithoutMoment,
    /// A claim sent again first looks for what an earlier copy got, and then claims.
    LookBeforeClaim,
    /// Nobody asks again what became of a claim.
    GiveUpClaim,
    /// A claim that is under way is swept up as if nobody knew of it.
    SweepClaims,
    /// Work begins when the answer to a claim arrives, lease or no lease.
    StartWithoutLease,
    /// Work begins though the node has another number by then.
    StartUnderNewNumber,
    /// Handlers are not stopped when the lease is over.
    WorkOn,
    /// The lease is counted from when the answer to the beat arrived.
    TrustReplyTime,
    SettleWithoutVersion,
    SettleWithoutFence,
    /// The answer to a settle ends whatever the node has to do with that task.
    ForgetById,
    /// The end is recorded whether or not the row was still there.
    EndWithoutLooking,
    FenceWithoutWatching,
    /// Takes back what a silent node holds without declaring it dead.
    RescueWithoutFence,
    /// Puts back with the number of the dead node left on the row.
    RescueLeavesOwner,
    CancelBumpsVersion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    pub db: Database,
    pub nodes: [Node; NODES as usize],
    /// Statements on their way of which nobody expects an answer. Sorted: free places first.
    pub late: [Option<Request>; LATE],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tick,
    Fence { number: u8 },
    Rescue { task: u8 },
    Cancel { task: u8 },
    Crash { node: u8 },
    SendBeat { node: u8 },
    ExecuteBeat { node: u8 },
    HearOfBeat { node: u8 },
    Claim { node: u8, task: u8 },
    Sweep { node: u8, task: u8 },
    Settle { node: u8, hand: u8, outcome: Outcome },
    Execute { node: u8, hand: u8 },
    Hear { node: u8, hand: u8 },
    SendAgain { node: u8, hand: u8 },
    GiveUp { node: u8, hand: u8 },
    ExecuteLate { which: u8 },
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let nodes = [Node::new(self.lease); NODES as usize];
        vec![State { db: Database::new(self.tasks), nodes, late: [None; LATE] }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for number in 0..NUMBERS {
            if state.db.may_fence(self, number) {
                steps.push(Step::Fence { number });
            }
        }
        for task in 0..TASKS {
            self.task_steps(state, task, steps);
        }
        for node in 0..NODES {
            self.node_steps(state, node, steps);
        }
        for which in 0..LATE as u8 {
            if state.late[which as usize].is_some() {
                steps.push(Step::ExecuteLate { which });
            }
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = *state;
        next.take(self, step);
        next.normal(self);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = properties::always(self);
        if self.plain && self.mistake.is_none() {
            all.extend(properties::sometimes());
        }
        all
    }
}

/// Which steps are possible.
impl Protocol {
    pub fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn task_steps(&self, state: &State, task: u8, steps: &mut Vec<Step>) {
        if state.db.may_rescue(self, task) {
            steps.push(Step::Rescue { task });
        }
        if state.db.may_cancel(task) {
            steps.push(Step::Cancel { task });
        }
    }

    fn node_steps(&self, state: &State, node: u8, steps: &mut Vec<Step>) {
        let it = state.node(node);
        steps.push(Step::Crash { node });
        match it.beat {
            Beat::None => {}
            Beat::Sent { .. } => steps.push(Step::ExecuteBeat { node }),
            Beat::Alive { .. } => steps.push(Step::HearOfBeat { node }),
        }
        steps.push(Step::SendBeat { node }); // an earlier one is lost then
        for task in 0..TASKS {
            if it.may_work > 0 && self.free_hand(it, task).is_some() {
                self.taking_steps(state, node, task, steps);
            }
        }
        for hand in 0..HANDS {
            if let Some(it) = state.hand(node, hand) {
                self.hand_steps(state, node, hand, it, steps);
            }
        }
    }

    /// Where a node may take up a task, if it can.
    pub fn free_hand(&self, node: &Node, task: u8) -> Option<u8> {
        let mut hands = if self.tasks == 1 { 0..self.hands } else { task..task + 1 };
        hands.find(|h| node.hands[*h as usize].is_none())
    }

    fn taking_steps(&self, state: &State, node: u8, task: u8, steps: &mut Vec<Step>) {
        let row = state.db.row(task);
        match row.status {
            Status::Pending => steps.push(Step::Claim { node, task }),
            Status::Running if self.sweeps && row.owner == node => {
                let claims_count = !self.makes(Mistake::SweepClaims);
                let counts = |doing| claims_count || !matches!(doing, Doing::Claiming(_));
                if !state.node(node).knows(task, row, counts) {
                    steps.push(Step::Sweep { node, task });
                }
            }
            _ => {}
        }
    }

    fn hand_steps(&self, state: &State, node: u8, hand: u8, it: Hand, steps: &mut Vec<Step>) {
        let call = match it.doing {
            Doing::Claiming(call) | Doing::Settling(_, call) => call,
            Doing::ToGiveBack if state.node(node).may_work == 0 => return,
            Doing::ToGiveBack => return steps.push(Step::Settle { node, hand, outcome: Outcome::Again }),
            Doing::Executing => {
                steps.push(Step::Settle { node, hand, outcome: Outcome::Done });
                return steps.push(Step::Settle { node, hand, outcome: Outcome::Again });
            }
        };
        let answered = matches!(call, Call::Answered(_));
        steps.push(if answered { Step::Hear { node, hand } } else { Step::Execute { node, hand } });
        // "Lost" stays the answer, however often one asks.
        if call == Call::Answered(Answer::Lost) {
            return;
        }
        steps.push(Step::SendAgain { node, hand });
        if matches!(it.doing, Doing::Claiming(_)) && (self.sweeps || self.makes(Mistake::GiveUpClaim)) {
            steps.push(Step::GiveUp { node, hand });
        }
    }
}
