//! Sagas: a list by state, name and id. Those that need a person come first.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use redrive::saga::SagaState;
use redrive::store::SagaSummary;

use crate::server::App;
use crate::server::problem::{Answer, Problem};
use crate::server::sagas::{OfSagas, found};

use super::address::Address;
use super::fields::{Fields, segment};
use super::filter::PAGE;
use super::html::{self, Html};
use super::tasks::tag;
use super::visit::{Frame, Visit};
use super::words::Words;

const NAMES: &[&str] = &["state", "name", "id"];
/// So many that are stuck stand above the list.
const MOST_STUCK: u32 = 20;

#[derive(Template)]
#[template(path = "sagas.html")]
struct Page {
    f: Frame,
    address: String,
    asked: Fields,
    is_filtered: bool,
    /// State, name, count; where it leads, whether it is this.
    states: Vec<Tab>,
    stuck: Vec<Row>,
    rows: Vec<Row>,
    first: Option<String>,
    next: Option<String>,
}

struct Tab {
    name: &'static str,
    count: String,
    link: String,
    is_here: bool,
    class: &'static str,
}

struct Row {
    id: String,
    link: String,
    name: String,
    state: Html,
    since: Html,
    created: Html,
    look_at: Option<Html>,
}

pub(super) async fn list(
    State(app): State<App>,
    visit: Visit,
    Address(address): Address,
    asked: Fields,
) -> Answer<Response> {
    let f = visit.frame;
    let text = |name: &str| asked.get(name).map(str::to_owned);
    let state = asked.get("state").map(read_state).transpose()?;
    let wanted =
        OfSagas { state, name: text("name"), id_prefix: text("id"), after: text("after"), ..OfSagas::default() };
    let (counts, shown) = (app.store.count_sagas().await?, found(&app, &wanted, PAGE).await?);
    let filtered = asked.only(NAMES);
    let stuck = match filtered.is_empty() && asked.get("after").is_none() {
        true => {
            let stuck = OfSagas { state: Some(SagaState::Stuck), ..OfSagas::default() };
            found(&app, &stuck, MOST_STUCK).await?.sagas
        }
        false => Vec::new(),
    };
    // Those stand above already.
    let below = shown.sagas.iter().filter(|saga| !stuck.iter().any(|stuck| stuck.id == saga.id));
    let page = Page {
        states: states(&counts, state, &filtered, f.w),
        rows: below.map(|saga| row(saga, f.w)).collect(),
        stuck: stuck.iter().map(|saga| row(saga, f.w)).collect(),
        first: asked.get("after").map(|_| format!("/sagas{}", filtered.query())),
        next: shown.next.map(|next| format!("/sagas{}", filtered.with("after", Some(&next)).query())),
        is_filtered: !filtered.is_empty(),
        asked: filtered,
        address,
        f: f.clone(),
    };
    Ok(f.show(&page))
}

fn read_state(name: &str) -> Answer<SagaState> {
    let wrong = || Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("state: {name:?} is not known"));
    SagaState::ALL.into_iter().find(|state| state.as_str() == name).ok_or_else(wrong)
}

/// Those that need somebody first, then those under way, then those that have ended.
fn states(counts: &[(SagaState, u64)], here: Option<SagaState>, filtered: &Fields, w: &Words) -> Vec<Tab> {
    let mut all = SagaState::ALL;
    all.sort_by_key(|state| (*state != SagaState::Stuck, state.is_final()));
    let one = |state: SagaState| {
        let count = counts.iter().find(|(known, _)| *known == state).map(|(_, n)| *n);
        Tab {
            name: w.saga_state(state),
            count: count.map(html::up_to).unwrap_or_default(),
            link: format!("/sagas{}", filtered.with("state", Some(state.as_str())).query()),
            is_here: here == Some(state),
            class: if state == SagaState::Stuck && count.is_some_and(|n| n > 0) { "bad" } else { "" },
        }
    };
    all.into_iter().map(one).collect()
}

pub(super) fn state_tag(state: SagaState, w: &Words) -> Html {
    let class = match state {
        SagaState::Stuck => "bad",
        SagaState::Compensating | SagaState::CompensatedWithGaps | SagaState::Killed => "warn",
        SagaState::Succeeded => "good",
        _ => "",
    };
    tag(class, w.saga_state(state))
}

fn row(saga: &SagaSummary, w: &Words) -> Row {
    Row {
        link: format!("/sagas/{}", segment(&saga.id)),
        id: saga.id.clone(),
        name: saga.name.clone(),
        state: state_tag(saga.state, w),
        since: html::ago(saga.since),
        created: html::ago(saga.created_at),
        look_at: saga.look_at.filter(|_| !saga.state.is_final()).map(html::ago),
    }
}
