//! What must always hold, and what must be possible.

use stateright::Property;

use super::calm;
use super::database::{NODES, Outcome, Row, Status, TASKS};
use super::node::{Answer, Call, Doing, Hand};
use super::protocol::{Protocol, State};

pub const ONE_PLACE: &str = "a task is in one place, and ends once";
pub const ONE_OWNER: &str = "no two live owners";
pub const FENCED: &str = "no write after a fence";
pub const IN_HANDS: &str = "whoever owns a running row knows it";
pub const RECOGNISED: &str = "what is recognised as ours was ours";
pub const ENDS: &str = "every task ends once it is calm";

pub fn always(p: &Protocol) -> Vec<Property<Protocol>> {
    let mut all = vec![
        Property::always(ONE_PLACE, |_, state: &State| state.db.rows.iter().all(is_in_one_place)),
        Property::always(ONE_OWNER, |_, state: &State| (0..TASKS).all(|task| live_owners(state, task) <= 1)),
        Property::always(FENCED, |_, state: &State| !state.db.written_after_fence),
        Property::always(RECOGNISED, |_, state: &State| hands(state).all(|(_, it)| is_rightly_recognised(state, it))),
    ];
    if !p.sweeps {
        all.push(Property::always(IN_HANDS, |_, state: &State| (0..TASKS).all(|task| is_in_hands(state, task))));
    }
    if p.tasks == 1 {
        all.push(Property::always(ENDS, calm::everything_ends)); // with two it takes long
    }
    all
}

fn is_in_one_place(row: &Row) -> bool {
    u8::from(!row.status.is_final()) + row.ends == 1
}

fn live_owners(state: &State, task: u8) -> usize {
    hands(state).filter(|(_, it)| it.task == task && it.doing == Doing::Executing).count()
}

/// A row of a dead number is rescued, and an earlier life's number will be dead. Everybody else has to settle his own.
fn is_in_hands(state: &State, task: u8) -> bool {
    let row = state.db.row(task);
    let somebody_elses = row.owner >= NODES || state.db.is_dead(row.owner);
    row.status != Status::Running || somebody_elses || state.node(row.owner).knows(task, row, |_| true)
}

fn is_rightly_recognised(state: &State, it: &Hand) -> bool {
    let row = state.db.row(it.task);
    let recognised = it.doing == Doing::Settling(Outcome::Again, Call::Answered(Answer::Recognised));
    !(recognised && row.rescued && row.version == it.version + 1)
}

/// What the nodes have in hand, with who it is.
fn hands(state: &State) -> impl Iterator<Item = (u8, &Hand)> {
    (0..).zip(&state.nodes).flat_map(|(n, node)| node.hands().map(move |it| (n, it)))
}

/// If one of these were not reached, the rest would not say much.
pub fn sometimes() -> Vec<Property<Protocol>> {
    fn row(state: &State, is_so: impl Fn(&Row) -> bool) -> bool {
        state.db.rows.iter().any(is_so)
    }
    vec![
        Property::sometimes("a fence", |_, state: &State| (0..NODES).any(|node| state.db.is_dead(node))),
        Property::sometimes("a rescue", |_, state: &State| row(state, |it| it.crashes > 0)),
        Property::sometimes("dead by crashes", |_, state: &State| row(state, |it| it.status == Status::Dead)),
        Property::sometimes("cancelled while running", |_, state: &State| {
            row(state, |it| it.status == Status::Cancelled && it.cancel_requested)
        }),
        Property::sometimes("done wins over cancel", |_, state: &State| {
            row(state, |it| it.status == Status::Done && it.cancel_requested)
        }),
        Property::sometimes("given back when the lease was over", |_, state: &State| {
            hands(state).any(|(_, it)| it.doing == Doing::ToGiveBack)
        }),
        Property::sometimes("a lost answer to a claim made good", |_, state: &State| {
            hands(state).any(|(_, it)| it.doing == Doing::Claiming(Call::Answered(Answer::Recognised)))
        }),
        Property::sometimes("a lost answer to a settle made good", |_, state: &State| {
            hands(state).any(|(_, it)| is_settled(it, Answer::Recognised))
        }),
        Property::sometimes("the late settle of a zombie refused", |_, state: &State| {
            hands(state).any(|(node, it)| state.db.is_dead(node) && is_settled(it, Answer::Lost))
        }),
    ]
}

fn is_settled(it: &Hand, answer: Answer) -> bool {
    matches!(it.doing, Doing::Settling(_, Call::Answered(heard)) if heard == answer)
}
