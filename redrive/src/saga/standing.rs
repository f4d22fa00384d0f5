//! What can be asked of a [`State`]: what is ready, what is left to be undone, whether a person is needed, and who is still wanted.

use std::sync::Arc;

use serde_json::Value;

use super::definition::{StepDef, Steps, UndoKind, WHOLE};
use super::event::{Op, SagaState, Why, Work};
use super::state::{Back, Doing, State, StepState, has};

impl State {
    pub(super) fn is_called(&self, i: usize) -> bool {
        self.flow.step(i).is_some_and(StepDef::is_called)
    }

    /// Whether all that it waits for is done.
    pub(crate) fn is_ready(&self, i: usize) -> bool {
        self.are_over(self.flow.after.get(i).copied().unwrap_or(0))
    }

    /// Whether all that comes before it is done, over however many steps: what was undone may have begun anew, and what came
    /// between need not have.
    pub(crate) fn is_its_turn(&self, i: usize) -> bool {
        self.are_over(self.flow.above(i))
    }

    fn are_over(&self, these: Steps) -> bool {
        self.steps.iter().enumerate().all(|(i, step)| !has(these, i) || step.run.is_over())
    }

    /// It may have happened, and cannot be undone, or its task is gone: whether to go on or back is for a person.
    pub(crate) fn is_undecidable(&self, i: usize) -> bool {
        let irreversible = self.flow.step(i).is_some_and(|step| step.undo == UndoKind::Irreversible);
        let is_for_people = match self.steps.get(i).map(|step| &step.run) {
            Some(Doing::Unknown(_)) => irreversible,
            Some(Doing::Lost(_)) => true,
            _ => false,
        };
        is_for_people && !self.committed
    }

    /// It may have happened, cannot be undone, and a person has it tried again: no time that is up turns it back meanwhile.
    pub(crate) fn is_tried_again(&self, i: usize) -> bool {
        let irreversible = self.flow.step(i).is_some_and(|step| step.undo == UndoKind::Irreversible);
        irreversible && self.steps.get(i).is_some_and(|step| step.in_doubt && step.run == Doing::Started)
    }

    /// The steps that are to be undone, if it goes back.
    pub(crate) fn scope(&self) -> Steps {
        match &self.back {
            Some(Back { to: Some(to) }) => self.flow.since(*to),
            Some(Back { to: None }) => Steps::MAX,
            None => 0,
        }
    }

    /// Whether nothing is left to be undone of a step: because it is, or because nothing had to be, or can be.
    pub(crate) fn is_settled(&self, i: usize) -> bool {
        let (Some(def), Some(step)) = (self.flow.step(i), self.steps.get(i)) else { return true };
        if !has(self.scope(), i) || !def.is_called() {
            return true;
        }
        let whole = self.flow.definition.compensate_with.is_some();
        step.run != Doing::Started && (!self.needs_undo(i) || step.undo.is_over() || whole)
    }

    /// Whether it has to be undone, now or when that is known.
    pub(crate) fn needs_undo(&self, i: usize) -> bool {
        let compensates = self.flow.step(i).is_some_and(|def| def.is_called() && def.undo == UndoKind::Compensate);
        compensates && self.steps.get(i).is_some_and(StepState::may_have_happened)
    }

    /// Whether all that had to be undone is.
    pub(crate) fn is_undone(&self) -> bool {
        let whole = self.flow.definition.compensate_with.is_some();
        let wanted = whole && (0..self.steps.len()).any(|i| self.needs_undo(i));
        (0..self.steps.len()).all(|i| self.is_settled(i)) && (!wanted || self.whole.is_over())
    }

    /// Whether something that happened was not undone.
    pub(crate) fn has_gaps(&self) -> bool {
        self.past.gaps || self.whole == Doing::Skipped || (0..self.steps.len()).any(|i| self.is_gap(i))
    }

    /// Whether this happened, and was not, or cannot be, undone.
    pub(super) fn is_gap(&self, i: usize) -> bool {
        let Some(step) = self.steps.get(i) else { return false };
        let irreversible = self.flow.step(i).is_some_and(|def| def.undo == UndoKind::Irreversible);
        step.undo == Doing::Skipped || (irreversible && step.may_have_happened())
    }

    /// The undos that were given up and may have had an effect: to go on as if their steps were still done could be wrong, and to do them
    /// anew, too.
    pub(crate) fn maybe_undone(&self) -> impl Iterator<Item = Work> {
        let steps = self.flow.steps().iter().zip(&self.steps);
        let unknown = steps.filter(|(_, step)| step.undo.is_unknown());
        unknown.map(|(def, step)| Work { step: Some(def.name.clone()), op: Op::Undo, round: step.round })
    }

    /// Whether a person is needed.
    fn is_stuck(&self) -> bool {
        let stuck = |(i, s): (usize, &StepState)| {
            let run = s.run.has_failed() && (self.committed || (self.back.is_none() && self.is_undecidable(i)));
            run || (self.back.is_some() && s.undo.has_failed()) || s.confirm.has_failed()
        };
        self.whole.has_failed() || self.steps.iter().enumerate().any(stuck)
    }

    /// How it stands, in one word.
    pub(crate) fn word(&self) -> SagaState {
        let waits = |(i, s): (usize, &StepState)| s.run == Doing::Started && !self.is_called(i);
        let busy =
            |(i, s): (usize, &StepState)| self.is_called(i) && s.run == Doing::Started || s.confirm == Doing::Started;
        let mut steps = self.steps.iter().enumerate();
        match self.ended {
            Some(end) => end,
            None if self.is_stuck() => SagaState::Stuck,
            None if self.back.is_some() => SagaState::Compensating,
            None if steps.clone().any(waits) && !steps.any(busy) => SagaState::Waiting,
            None => SagaState::Running,
        }
    }

    /// Whether this is still to be done: it is under way, or a person has brought it back after it failed. A run that has failed is not
    /// brought back while the saga goes back.
    pub(crate) fn wants(&self, work: &Work) -> bool {
        let Some(doing) = self.at(work).filter(|doing| doing.is_open()) else { return false };
        let fits = match work.op {
            Op::Run => self.back.is_none() || (*doing == Doing::Started && self.is_beside(work)),
            Op::Undo => self.back.is_some(),
            Op::Confirm => true,
        };
        self.ended.is_none() && fits
    }

    /// Whether a step is none of those that the saga goes back over: what is under way of it is left to itself.
    fn is_beside(&self, work: &Work) -> bool {
        self.place(work).is_some_and(|i| !has(self.scope(), i))
    }

    /// Whether this is the run of the pivot.
    pub(super) fn is_pivot(&self, work: &Work) -> bool {
        work.op == Op::Run && self.flow.pivot.is_some() && self.place(work) == self.flow.pivot
    }

    /// Whether the saga waits to hear how this ends.
    pub(crate) fn is_awaited(&self, work: &Work) -> bool {
        self.ended.is_none() && self.at(work) == Some(&Doing::Started)
    }

    /// What would be tried again: all that has failed and needs a person.
    pub(crate) fn stuck_work(&self) -> Vec<Work> {
        let mut all = Vec::new();
        for (def, step) in self.flow.steps().iter().zip(&self.steps) {
            for op in [Op::Run, Op::Undo, Op::Confirm] {
                let work = Work { step: Some(def.name.clone()), op, round: step.round };
                if step.of(op).has_failed() && self.wants(&work) {
                    all.push(work);
                }
            }
        }
        if self.whole.has_failed() {
            all.push(Work { step: None, op: Op::Undo, round: 1 });
        }
        all
    }

    /// The first of that, and its error.
    pub(crate) fn why_stuck(&self) -> Option<(Work, &str)> {
        let work = self.stuck_work().into_iter().next()?;
        match self.at(&work)? {
            Doing::Refused(error) | Doing::Unknown(error) | Doing::Lost(error) => Some((work, error)),
            Doing::Idle | Doing::Started | Doing::Done | Doing::Skipped => None,
        }
    }

    /// What a person means who names a step and not what is done to it.
    pub(crate) fn open_work(&self, name: &str) -> Option<Work> {
        if name == WHOLE {
            return self.whole.is_open().then_some(Work { step: None, op: Op::Undo, round: 1 });
        }
        let i = self.flow.place(name)?;
        let step = self.steps.get(i)?;
        let ops = [Op::Undo, Op::Confirm, Op::Run].into_iter();
        let op = ops.filter(|op| *op != Op::Undo || self.back.is_some()).find(|op| step.of(*op).is_open())?;
        Some(Work { step: Some(name.to_owned()), op, round: step.round })
    }

    /// The output of a step that is done.
    pub(crate) fn output(&self, name: &str) -> Option<&Arc<Value>> {
        let step = self.flow.place(name).and_then(|i| self.steps.get(i))?;
        step.output.as_ref()
    }

    /// Why it goes back, if a step's failure is the reason.
    pub(crate) fn why_back(&self, i: usize, error: &str) -> Why {
        let step = self.flow.step(i).map(|step| step.name.clone()).unwrap_or_default();
        if self.is_called(i) { Why::Failed { step, error: error.to_owned() } } else { Why::TimeUp { step } }
    }
}
