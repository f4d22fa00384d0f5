//! Settings: what holds, and single fields that are set while nodes run.

use axum::Json as Shows;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use redrive::Settings;
use redrive::store::SetField;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::auth::{Admin, Operator};
use super::input::{Json, Names};
use super::own;
use super::problem::Answer;
use super::shapes::SetFieldShape;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(all)).routes(routes!(set, unset))
}

#[derive(Debug, Serialize, ToSchema)]
struct All {
    /// What holds on the node that answers, by path. Secrets are masked.
    #[schema(value_type = Object)]
    settings: std::collections::BTreeMap<String, Value>,
    /// What people have set, on all nodes, over file and environment.
    #[schema(value_type = Vec<SetFieldShape>)]
    set: Vec<SetField>,
}

/// List settings
#[utoipa::path(get, path = "/settings", tag = "cluster", responses((status = 200, body = All)))]
async fn all(State(app): State<App>, Operator(_): Operator) -> Answer<Shows<All>> {
    Ok(Shows(All { settings: app.settings().flat(), set: app.store.set_fields().await? }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewValue {
    /// As in the file: `5`, `"10s"`, `{"fixed": "3s"}`.
    #[schema(value_type = Value)]
    value: Value,
}

/// Set a field
///
/// On all nodes, over what their files say: `defaults.max_attempts`, `methods."billing.charge".concurrency`. Only fields that hold at
/// once can be set; for the others there is the file.
#[utoipa::path(put, path = "/settings/{path}", tag = "cluster", params(("path" = String, Path)), request_body = NewValue,
    responses((status = 204, description = "It holds here, and on other nodes within a few seconds."),
        (status = 200, body = Waiting, description = "It is set; what is named holds from the next start of each node on.")))]
async fn set(
    State(app): State<App>,
    Admin(who): Admin,
    Names([path]): Names<1>,
    Json(new): Json<NewValue>,
) -> Answer<Response> {
    Ok(told(app.set(&path, Some(new.value), &who.name).await?))
}

/// Take back what was set
///
/// What the files say holds again.
#[utoipa::path(delete, path = "/settings/{path}", tag = "cluster", params(("path" = String, Path)),
    responses((status = 204, description = "It is not set."),
        (status = 200, body = Waiting, description = "It is not set; what is named holds until the next start of each node.")))]
async fn unset(State(app): State<App>, Admin(who): Admin, Names([path]): Names<1>) -> Answer<Response> {
    Ok(told(app.set(&path, None, &who.name).await?))
}

/// What waits.
#[derive(Debug, Serialize, ToSchema)]
struct Waiting {
    /// The field, if it changes with the next start of nodes: a `per_business` of a method that had none when they started, or that is to
    /// have none.
    waiting: Vec<String>,
}

fn told(waiting: Option<String>) -> Response {
    match waiting {
        None => StatusCode::NO_CONTENT.into_response(),
        Some(field) => Shows(Waiting { waiting: vec![field] }).into_response(),
    }
}

/// The settings with a field of another value, if that may be.
pub(super) fn changed(before: &Settings, path: &str, value: &Value) -> redrive::Result<Settings> {
    let mut after = before.clone();
    after.set(path, value.clone())?;
    own::check_settings(before, &after)?;
    Ok(after)
}

/// What of a change waits for the next start, though it can be made while nodes run: a limit by business id that there is after it, and
/// was not in settings that a node may have begun with, or the other way round. Which methods this node has does not matter.
pub(super) fn waiting(path: &str, begun: &[&Settings], after: &Settings) -> Option<String> {
    let limit = limit_by_business(path)?;
    let has = |settings: &Settings| settings.flat().contains_key(&limit);
    begun.iter().any(|begun| has(begun) != has(after)).then_some(limit)
}

/// The limit by business id that a path names, as the list of settings names it.
pub(super) fn limit_by_business(path: &str) -> Option<String> {
    let (none, mut some) = (Settings::default(), Settings::default());
    some.set(path, 1.into()).ok()?;
    none.differences(&some).into_iter().find(|path| path.ends_with(".per_business"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whether_there_is_a_limit_by_business_waits() {
        let path = "methods.\"a.b\".per_business";
        let none = Settings::default();
        let five = changed(&none, path, &5.into()).unwrap();
        let more = changed(&five, "methods.'a.b'.per_business", &6.into()).unwrap();
        let waits = |begun: &[&Settings], after| waiting("methods.'a.b'.per_business", begun, after).is_some();
        assert_eq!(waiting("methods.'a.b'.per_business", &[&none], &five).as_deref(), Some(path));
        assert!(waits(&[&more], &none) && !waits(&[&five], &more) && !waits(&[&none], &none));
        assert!(waits(&[&none, &five], &more), "another number does not hold where there was none");
        assert!(waits(&[&none, &five], &none), "nor none where there was one");
        let more = changed(&none, "methods.a.concurrency", &5.into()).unwrap();
        assert_eq!(waiting("methods.a.concurrency", &[&none], &more), None);
        assert_eq!(waiting("methods.a.concurrency", &[&five], &none), None, "that of another is not asked for");
    }
}
