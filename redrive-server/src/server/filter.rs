//! Which tasks, letters or entries of the archive: the same fields for all three, and some more for two of them. A macro, because
//! `serde(flatten)` cannot refuse fields that it does not know.
//!
//! Which page of them is no part of it ([`Paging`](super::input::Paging)): what is done to all that a filter finds has no pages, and a
//! limit that is taken and not heeded would be done to more than was meant.

use redrive::store::{ArchiveFilter, DeadFilter, EndedAs, TaskFilter};
use redrive::{DeadReason, Status, Timestamp};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::shapes::{DeadReasonShape, EndedAsShape, StatusShape};

macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident { $($more:tt)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize, IntoParams, ToSchema)]
        #[into_params(parameter_in = Query)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            #[param(value_type = Option<StatusShape>, inline)]
            #[schema(value_type = Option<StatusShape>)]
            status: Option<Status>,
            method: Option<String>,
            key: Option<String>,
            business_type: Option<String>,
            business_id: Option<String>,
            /// Of the last error: `timeout`, `http.503`.
            error_kind: Option<String>,
            /// A text in the last error's message. No index knows that: a page may be short, or empty, though there is more;
            /// go on with `next`.
            error_contains: Option<String>,
            #[param(value_type = Option<String>, format = DateTime)]
            #[schema(value_type = Option<String>, format = DateTime)]
            created_from: Option<Timestamp>,
            #[param(value_type = Option<String>, format = DateTime)]
            #[schema(value_type = Option<String>, format = DateTime)]
            created_before: Option<Timestamp>,
            #[param(value_type = Option<String>, format = DateTime)]
            #[schema(value_type = Option<String>, format = DateTime)]
            due_from: Option<Timestamp>,
            #[param(value_type = Option<String>, format = DateTime)]
            #[schema(value_type = Option<String>, format = DateTime)]
            due_before: Option<Timestamp>,
            $($more)*
        }

        impl $name {
            fn of_tasks(&self) -> TaskFilter {
                let asked = self.clone();
                TaskFilter {
                    status: asked.status,
                    method: asked.method,
                    key: asked.key,
                    business_type: asked.business_type,
                    business_id: asked.business_id,
                    error_kind: asked.error_kind,
                    error_contains: asked.error_contains,
                    created_from: asked.created_from,
                    created_before: asked.created_before,
                    due_from: asked.due_from,
                    due_before: asked.due_before,
                    ..TaskFilter::default()
                }
            }
        }
    )*};
}

filters! {
    /// Which tasks: all that is given must hold.
    OfTasks {}

    /// Which dead letters: all that is given must hold.
    OfDead {
        #[param(value_type = Option<DeadReasonShape>, inline)]
        #[schema(value_type = Option<DeadReasonShape>)]
        reason: Option<DeadReason>,
        /// Taken over by this person.
        owner: Option<String>,
        /// Taken over by anyone, or by nobody.
        owned: Option<bool>,
        /// Whether someone has said that they have seen it.
        acknowledged: Option<bool>,
    }

    /// Which entries of the archive: all that is given must hold.
    OfArchive {
        #[param(value_type = Option<EndedAsShape>, inline)]
        #[schema(value_type = Option<EndedAsShape>)]
        ended_as: Option<EndedAs>,
        /// Why it was given up.
        #[param(value_type = Option<DeadReasonShape>, inline)]
        #[schema(value_type = Option<DeadReasonShape>)]
        reason: Option<DeadReason>,
    }
}

impl From<OfTasks> for TaskFilter {
    fn from(asked: OfTasks) -> Self {
        asked.of_tasks()
    }
}

impl From<OfDead> for DeadFilter {
    fn from(asked: OfDead) -> Self {
        let task = asked.of_tasks();
        let OfDead { reason, owner, owned, acknowledged, .. } = asked;
        Self { task, reason, owner, owned, acknowledged }
    }
}

impl From<OfArchive> for ArchiveFilter {
    fn from(asked: OfArchive) -> Self {
        Self { task: asked.of_tasks(), ended_as: asked.ended_as, reason: asked.reason }
    }
}
