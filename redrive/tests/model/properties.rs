//! What must always hold, and what must be possible.

use stateright::Property;

use super::database::{NODES, Outcome, Row, Status};
use super::node::{Answer, Beat, Call, Doing, Hand};
use super::protocol::{Protocol, State};

pub const ONE_PLACE: &str = "a task is in one place";
pub const ONE_OWNER: &str = "no two live owners";
pub const FENCED: &str = "no write after a fence";
pub const IN_HANDS: &str = "what is running will be ended by somebody";
pub const RECOGNISED: &str = "what is recognised as ours was ours";

pub fn safety() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ONE_PLACE, |_, state| state.db.rows.iter().all(is_in_one_place)),
        Property::always(ONE_OWNER, |p, state| (0..p.tasks as u8).all(|task| live_owners(state, task) <= 1)),
        Property::always(FENCED, |_, state| !state.db.written_after_fence),
        Property::always(IN_HANDS, |p, state| (0..p.tasks as u8).all(|task| is_in_hands(state, task))),
        Property::always(RECOGNISED, |_, state| hands(state).all(|(_, hand)| is_rightly_recognised(state, hand))),
    ]
}

fn is_in_one_place(row: &Row) -> bool {
    u8::from(!row.status.is_final()) + row.ends == 1
}

fn live_owners(state: &State, task: u8) -> usize {
    state.nodes.iter().map(|node| node.executes(task)).sum()
}

fn is_in_hands(state: &State, task: u8) -> bool {
    let row = state.db.rows[usize::from(task)];
    let owner = usize::from(row.owner);
    if row.status != Status::Running || owner >= NODES || state.db.is_dead(row.owner) {
        return true;
    }
    let hands = state.nodes[owner].hands.iter().enumerate();
    hands.filter_map(|(h, hand)| hand.map(|hand| (h, hand))).any(|(h, hand)| hand.knows(h as u8, task, row.version, row.moment))
}

fn is_rightly_recognised(state: &State, hand: &Hand) -> bool {
    let row = state.db.rows[usize::from(hand.task)];
    let recognised = hand.doing == Doing::Settling(Outcome::Again, Call::Answered(Answer::Recognised));
    !(recognised && row.rescued && row.version == hand.version + 1)
}

fn hands(state: &State) -> impl Iterator<Item = (usize, &Hand)> {
    state.nodes.iter().enumerate().flat_map(|(n, node)| node.hands.iter().flatten().map(move |hand| (n, hand)))
}

pub fn reach() -> Vec<Property<Protocol>> {
    vec![
        Property::sometimes("a fence", |_, state| state.nodes.iter().any(|node| node.beat == Beat::Fenced)),
        Property::sometimes("a rescue", |_, state| state.db.rows.iter().any(|row| row.crashes > 0)),
        Property::sometimes("a zombie's settle refused", |_, state| {
            hands(state).any(|(node, hand)| state.db.numbers[node].dead && is_settled(hand, Answer::Lost))
        }),
        Property::sometimes("a lost claim recognised", |_, state| {
            hands(state).any(|(_, hand)| hand.doing == Doing::Claiming(Call::Answered(Answer::Recognised)))
        }),
        Property::sometimes("a lost settle recognised", |_, state| {
            hands(state).any(|(_, hand)| is_settled(hand, Answer::Recognised))
        }),
        Property::sometimes("cancelled while running", |_, state| {
            state.db.rows.iter().any(|row| row.status == Status::Cancelled && row.cancel_requested)
        }),
        Property::sometimes("done wins over cancel", |_, state| {
            state.db.rows.iter().any(|row| row.status == Status::Done && row.cancel_requested)
        }),
        Property::sometimes("dead by crashes", |_, state| {
            state.db.rows.iter().any(|row| row.status == Status::Dead)
        }),
    ]
}

fn is_settled(hand: &Hand, answer: Answer) -> bool {
    matches!(hand.doing, Doing::Settling(_, Call::Answered(it)) if it == answer)
}
