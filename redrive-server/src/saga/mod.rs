//! Sagas whose steps are HTTP requests: "book these, or give back what was booked".
//!
//! | file | what |
//! | --- | --- |
//! | `face` | a saga as JSON, all that can be wrong with it, and the library's definition of it |
//! | `template` | `{{steps.hotel.body.id}}`: what earlier answers give to later requests |
//! | `runner` | one attempt at a step, and what its status means |
//!
//! Each request goes to its own part of one method, `saga.http`: the named target, or the host. So a service that is down has a gate
//! of its own and holds up nobody else.

mod face;
mod runner;
mod template;

use redrive::{Builder, MethodOptions};

use crate::http::HttpDelivery;

pub(crate) use face::{check_input, definition};
use runner::HttpSteps;

/// The method of all steps.
pub(crate) const METHOD: &str = "saga.http";

/// Makes an engine run such steps.
pub(crate) fn install(builder: Builder, delivery: &HttpDelivery) -> Builder {
    let each = MethodOptions::default().concurrency(100).gate(delivery.gate().clone());
    let builder = builder.saga_runner(METHOD, each, HttpSteps::new(delivery.clone())).split(METHOD);
    delivery.targets().fold(builder, |builder, target| {
        let mut limits = target.limits();
        limits.gate.get_or_insert_with(|| delivery.gate().clone());
        builder.limit_part(METHOD, &part_of_target(target.name()), limits)
    })
}

/// The part of requests to a target. No host is called so.
fn part_of_target(name: &str) -> String {
    format!("target {name}")
}
