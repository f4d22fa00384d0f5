//! What becomes of a state if nothing fails from then on, everybody does what is to be done, and every handler succeeds.

use stateright::Model;

use super::database::Outcome;
use super::node::Doing;
use super::protocol::{Protocol, State, Step};

/// More steps than it takes.
const LONG: usize = 200;

pub fn everything_ends(p: &Protocol, state: &State) -> bool {
    let mut state = *state;
    for _ in 0..LONG {
        if state.db.rows.iter().all(|row| row.status.is_final()) {
            return true;
        }
        let Some(next) = next(p, &state) else { return false };
        state = next;
    }
    false
}

/// The most urgent step that leads anywhere.
fn next(p: &Protocol, state: &State) -> Option<State> {
    let mut steps = Vec::new();
    p.actions(state, &mut steps);
    let mut steps: Vec<(u8, Step)> =
        steps.into_iter().filter_map(|step| Some((urgency(p, state, step)?, step))).collect();
    steps.sort_by_key(|(urgency, _)| *urgency);
    steps.into_iter().find_map(|(_, step)| p.next_state(state, step))
}

/// The lowest first. `None`: this is not a calm.
fn urgency(p: &Protocol, state: &State, step: Step) -> Option<u8> {
    match step {
        Step::ExecuteBeat { .. } | Step::HearOfBeat { .. } => Some(0),
        Step::SendBeat { node } => (state.node(node).may_work < p.lease).then_some(1),
        Step::Settle { node, hand, outcome: Outcome::Again } => {
            let fails = state.hand(node, hand).is_some_and(|it| it.doing == Doing::Executing);
            (!fails).then_some(2)
        }
        Step::Settle { .. } | Step::Execute { .. } | Step::Hear { .. } | Step::ExecuteLate { .. } => Some(2),
        Step::Rescue { .. } | Step::Claim { .. } | Step::Sweep { .. } => Some(2),
        Step::Fence { .. } => Some(3),
        Step::Tick => Some(4),
        Step::Crash { .. } | Step::Cancel { .. } | Step::SendAgain { .. } | Step::GiveUp { .. } => None,
    }
}
