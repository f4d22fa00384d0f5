//! What follows from how a saga stands: a pure function, asked after every event.
//!
//! [`advance`] takes one event, adds the events that follow from it, and says which tasks are to be started and stopped. All of
//! that is written in one transaction, so there is nobody to be woken afterwards, and nothing is begun that is not in the journal.

use serde_json::Value;

use crate::clock::Timestamp;

use super::definition::{Compensation, OnUndoFailure, StepDef, StepKind};
use super::event::{Event, Op, SagaState, Why, Work};
use super::state::{Doing, Illegal, State, StepState, has};

/// What is to be written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Next {
    pub(crate) state: State,
    /// All that is new in the journal.
    pub(crate) events: Vec<Event>,
    /// Tasks that begin.
    pub(crate) start: Vec<Work>,
    /// Work that may be under way and is not wanted any more.
    pub(crate) stop: Vec<Work>,
}

/// The saga after an event (`None`: after nothing but time) and all that follows from it.
pub(crate) fn advance(state: &State, events: impl IntoIterator<Item = Event>, now: Timestamp) -> Result<Next, Illegal> {
    let mut next = Next { state: state.clone(), events: Vec::new(), start: Vec::new(), stop: Vec::new() };
    for event in events {
        next.add(event, now)?;
    }
    while let Some(event) = follow(&next.state, now) {
        next.add(event, now)?;
    }
    Ok(next)
}

impl Next {
    fn add(&mut self, event: Event, now: Timestamp) -> Result<(), Illegal> {
        self.state.apply(&event, now)?;
        match &event {
            Event::Started { work, .. } if self.state.has_task(work) => self.start.push(work.clone()),
            Event::Rollback { .. } => self.stop.extend(self.state.stoppable()),
            Event::Ended { state: SagaState::Killed, .. } => self.stop.extend(self.state.under_way()),
            Event::Skipped { work, .. } => self.stop.push(work.clone()),
            Event::Done { work, by: Some(_), .. } if self.state.has_task(work) => self.stop.push(work.clone()),
            _ => {}
        }
        self.events.push(event);
        Ok(())
    }
}

/// The next event that follows by itself, if one does.
pub(crate) fn follow(state: &State, now: Timestamp) -> Option<Event> {
    if state.ended.is_some() || state.seq == 0 {
        return None;
    }
    match &state.back {
        Some(_) => undo_next(state),
        None => turn_back(state, now).or_else(|| end_waits(state, now)).or_else(|| go_on(state)),
    }
}

/// Why it must go back now, if so.
fn turn_back(state: &State, now: Timestamp) -> Option<Event> {
    if state.committed || (0..state.steps.len()).any(|i| state.is_undecidable(i)) {
        return None;
    }
    let is_timed = !(0..state.steps.len()).any(|i| state.is_tried_again(i));
    let name = |i: usize| state.flow.step(i).map(|step| step.name.clone());
    for (i, step) in state.steps.iter().enumerate() {
        if let Doing::Refused(error) | Doing::Unknown(error) = &step.run {
            let to = state.flow.back_to(i).filter(|_| !state.flow.step(i).is_some_and(StepDef::is_called));
            return Some(Event::Rollback { why: state.why_back(i, error), to: to.and_then(name) });
        }
        if let (Doing::Done, Some(up)) = (&step.run, reserved_until(state, i, step))
            && up <= now
            && is_timed
        {
            let to = state.flow.back_to(i).and_then(name);
            return Some(Event::Rollback { why: Why::TimeUp { step: name(i)? }, to });
        }
    }
    let is_late = is_timed && deadline(state).is_some_and(|deadline| deadline <= now);
    is_late.then_some(Event::Rollback { why: Why::Deadline, to: None })
}

/// Waits that are over.
fn end_waits(state: &State, now: Timestamp) -> Option<Event> {
    for (def, step) in state.flow.steps().iter().zip(&state.steps) {
        if step.run != Doing::Started {
            continue;
        }
        let work = || Work { step: Some(def.name.clone()), op: Op::Run, round: step.round };
        let is_up = waits_until(def, step).is_some_and(|until| until <= now);
        match &def.kind {
            StepKind::Sleep { .. } if is_up => {
                return Some(Event::Done { work: work(), output: Value::Null, by: None });
            }
            StepKind::WaitFor { signal, .. } => {
                if let Some((_, payload)) = state.signals.iter().find(|(name, _)| name == signal) {
                    return Some(Event::Done { work: work(), output: (**payload).clone(), by: None });
                }
                if is_up {
                    return Some(Event::TimeUp { work: work() });
                }
            }
            _ => {}
        }
    }
    None
}

/// The next step, the confirmation of what is reserved, or the end.
fn go_on(state: &State) -> Option<Event> {
    let steps = || state.flow.steps().iter().zip(&state.steps).enumerate();
    let work = |def: &StepDef, step: &StepState, op| Work { step: Some(def.name.clone()), op, round: step.round };
    if (0..state.steps.len()).any(|i| state.is_undecidable(i)) {
        return None; // a person decides whether it goes on
    }
    if let Some((_, (def, step))) = steps().find(|(i, (_, step))| step.run == Doing::Idle && state.is_its_turn(*i)) {
        return Some(Event::started(work(def, step, Op::Run)));
    }
    let all_run = state.steps.iter().all(|step| step.run.is_over());
    let reserved = |(_, (def, step)): &(usize, (&StepDef, &StepState))| def.is_reserve() && step.run == Doing::Done;
    if all_run && !state.committed && steps().any(|s| reserved(&s)) {
        return Some(Event::Decided);
    }
    if state.committed
        && let Some((_, (def, step))) = steps().find(|s| reserved(s) && s.1.1.confirm == Doing::Idle)
    {
        return Some(Event::started(work(def, step, Op::Confirm)));
    }
    let confirmed = steps().all(|s| !reserved(&s) || s.1.1.confirm.is_over());
    (all_run && confirmed).then_some(Event::Ended { state: SagaState::Succeeded, by: None })
}

/// The next undo, or the end of going back.
fn undo_next(state: &State) -> Option<Event> {
    if state.flow.pivot.is_some_and(|i| state.steps.get(i).is_some_and(|step| step.run == Doing::Started)) {
        return None; // whether there is a way back depends on how it ends
    }
    if state.is_undone() {
        let back_at_step = state.back.as_ref().is_some_and(|back| back.to.is_some());
        return Some(if back_at_step { Event::Round } else { Event::Ended { state: undone_as(state), by: None } });
    }
    if state.flow.definition.compensate_with.is_some() {
        let quiet = (0..state.steps.len()).all(|i| state.is_settled(i));
        let work = Work { step: None, op: Op::Undo, round: 1 };
        return (quiet && state.whole == Doing::Idle).then_some(Event::started(work));
    }
    let i = startable_undo(state)?;
    let (def, step) = (state.flow.step(i)?, state.steps.get(i)?);
    Some(Event::started(Work { step: Some(def.name.clone()), op: Op::Undo, round: step.round }))
}

fn undone_as(state: &State) -> SagaState {
    let undid = state.past.undid || state.whole.is_over() || state.steps.iter().any(|step| step.undo.is_over());
    match (state.has_gaps(), undid) {
        (true, _) => SagaState::CompensatedWithGaps,
        (false, true) => SagaState::Compensated,
        (false, false) => SagaState::Failed,
    }
}

/// A step whose undo may begin now.
fn startable_undo(state: &State) -> Option<usize> {
    let goes_on = state.flow.definition.on_undo_failure == OnUndoFailure::Continue;
    let failed = |i: usize| state.steps.get(i).is_some_and(|step| step.undo.has_failed());
    let mut open: Vec<usize> = (0..state.steps.len()).filter(|i| !state.is_settled(*i)).collect();
    if !goes_on && open.iter().any(|i| failed(*i)) {
        return None;
    }
    open.retain(|i| !failed(*i));
    let is_first = |i: usize| state.flow.step(i).is_some_and(|def| def.undo_first);
    if open.iter().any(|i| is_first(*i)) {
        open.retain(|i| is_first(*i));
    }
    let order = |i: &usize| state.steps.get(*i).map_or(0, |step| step.order);
    open.sort_by_key(|i| std::cmp::Reverse(order(i)));
    let all: u128 = open.iter().fold(0, |all, i| all | 1 << i);
    let may = |i: usize| match state.flow.definition.compensation {
        Compensation::Reverse => open.first() == Some(&i),
        Compensation::Parallel => true,
        Compensation::Graph => state.flow.below.get(i).is_some_and(|below| below & all == 0),
    };
    let is_idle =
        |i: usize| state.steps.get(i).is_some_and(|step| step.run != Doing::Started && step.undo == Doing::Idle);
    open.iter().copied().find(|i| may(*i) && is_idle(*i))
}

fn deadline(state: &State) -> Option<Timestamp> {
    state.flow.definition.deadline.map(|deadline| state.timed_from + deadline)
}

fn reserved_until(state: &State, i: usize, step: &StepState) -> Option<Timestamp> {
    match state.flow.step(i)?.kind {
        StepKind::Reserve { ttl, .. } => Some(step.done_at + ttl),
        _ => None,
    }
}

fn waits_until(def: &StepDef, step: &StepState) -> Option<Timestamp> {
    match &def.kind {
        StepKind::Sleep { time } => Some(step.started_at + *time),
        StepKind::WaitFor { timeout, .. } => timeout.map(|timeout| step.started_at + timeout),
        StepKind::Call | StepKind::Reserve { .. } => None,
    }
}

impl State {
    /// When it must be looked at again, though nothing may have happened.
    pub(crate) fn look_again_at(&self) -> Option<Timestamp> {
        if self.ended.is_some() || self.back.is_some() {
            return None;
        }
        let steps = || self.flow.steps().iter().zip(&self.steps).enumerate();
        let waits =
            steps().filter(|(_, (_, s))| s.run == Doing::Started).filter_map(|(_, (def, s))| waits_until(def, s));
        let reserved =
            steps().filter(|(_, (_, s))| s.run == Doing::Done).filter_map(|(i, (_, s))| reserved_until(self, i, s));
        waits.chain(reserved.chain(deadline(self)).filter(|_| self.is_bounded())).min()
    }

    /// When it goes back unless it is done by then.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        deadline(self).filter(|_| self.ended.is_none() && self.back.is_none() && self.is_bounded())
    }

    /// Whether its time counts: not past its point of no return, nor while a person decides.
    fn is_bounded(&self) -> bool {
        let for_people = |i: usize| self.is_undecidable(i) || self.is_tried_again(i);
        !self.committed && !(0..self.steps.len()).any(for_people)
    }

    fn has_task(&self, work: &Work) -> bool {
        let Some(name) = &work.step else { return true };
        self.flow.place(name).and_then(|i| self.flow.step(i)).is_some_and(StepDef::is_called)
    }

    /// Runs that are not wanted any more when it goes back: all in its scope. The pivot's may still succeed, and then there is no way back.
    fn stoppable(&self) -> Vec<Work> {
        let scope = self.scope();
        let mut all = self.under_way();
        let place = |work: &Work| work.step.as_deref().and_then(|name| self.flow.place(name));
        all.retain(|work| work.op == Op::Run && place(work).is_some_and(|i| has(scope, i)));
        all
    }

    /// All work that has a task which may run.
    pub(crate) fn under_way(&self) -> Vec<Work> {
        let mut all = Vec::new();
        for (def, step) in self.flow.steps().iter().zip(&self.steps).filter(|(def, _)| def.is_called()) {
            let started = [Op::Run, Op::Undo, Op::Confirm].into_iter().filter(|op| *step.of(*op) == Doing::Started);
            all.extend(started.map(|op| Work { step: Some(def.name.clone()), op, round: step.round }));
        }
        if self.whole == Doing::Started {
            all.push(Work { step: None, op: Op::Undo, round: 1 });
        }
        all
    }
}
