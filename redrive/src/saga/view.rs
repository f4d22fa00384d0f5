//! How the steps of a stored saga stand, for people.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::clock::Timestamp;
use crate::store::SagaRecord;

use super::definition::Flow;
use super::event::Op;
use super::state::{Doing, State, StepState};

/// How a step stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StepView {
    /// Its name.
    pub name: String,
    /// Which time the saga comes past it, from 1.
    pub round: u32,
    /// How far its run is: `idle`, `started`, `done`, `skipped`, `refused` or `unknown`.
    pub run: &'static str,
    /// How far its undo is.
    pub undo: &'static str,
    /// How far its confirmation is.
    pub confirm: &'static str,
    /// When it was started.
    pub started_at: Option<Timestamp>,
    /// When something last happened to it, in any round.
    pub changed_at: Option<Timestamp>,
    /// What came of it.
    pub output: Option<Value>,
    /// Why its run, its undo or its confirmation failed.
    pub error: Option<String>,
}

impl Doing {
    fn word(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Started => "started",
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Refused(_) => "refused",
            Self::Unknown(_) | Self::Lost(_) => "unknown",
        }
    }

    fn error(&self) -> Option<&String> {
        match self {
            Self::Refused(error) | Self::Unknown(error) | Self::Lost(error) => Some(error),
            Self::Idle | Self::Started | Self::Done | Self::Skipped => None,
        }
    }
}

impl SagaRecord {
    /// How its steps stand, in the order of the definition. Of a journal that makes no sense: as far as it does.
    pub fn steps(&self) -> Vec<StepView> {
        let Some((state, changed)) = self.replayed() else { return Vec::new() };
        let view = |(name, step): (&String, &StepState)| StepView {
            changed_at: changed.get(name.as_str()).copied(),
            name: name.clone(),
            round: step.round,
            run: step.run.word(),
            undo: step.undo.word(),
            confirm: step.confirm.word(),
            started_at: (step.order > 0).then_some(step.started_at),
            output: step.output.as_deref().cloned(),
            error: [Op::Undo, Op::Confirm, Op::Run].into_iter().find_map(|op| step.of(op).error()).cloned(),
        };
        self.definition.steps.iter().map(|def| &def.name).zip(&state.steps).map(view).collect()
    }

    /// When it goes back unless it is done by then. `None`: it has no deadline, or that does not count now.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.replayed()?.0.deadline()
    }

    /// What has become of it, and when something last happened to each step.
    fn replayed(&self) -> Option<(State, HashMap<&str, Timestamp>)> {
        let flow = Flow::new(self.definition.clone()).ok()?;
        let mut state = State::new(Arc::new(flow), Arc::new(Value::Null));
        let mut changed = HashMap::new();
        for journaled in &self.journal {
            if state.apply(&journaled.event, journaled.at).is_err() {
                break;
            }
            let step = journaled.event.work().and_then(|work| work.step.as_deref());
            step.into_iter().for_each(|step| _ = changed.insert(step, journaled.at));
        }
        Some((state, changed))
    }
}
