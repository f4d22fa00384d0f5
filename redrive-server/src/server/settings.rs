//! Settings: what holds, and single fields that are set while nodes run.

use axum::Json as Shows;
use axum::extract::State;
use axum::http::StatusCode;
use redrive::store::SetField;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::auth::{Admin, Operator};
use super::input::{Json, Names};
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
    responses((status = 204, description = "It holds here, and on other nodes within a few seconds.")))]
async fn set(
    State(app): State<App>,
    Admin(who): Admin,
    Names([path]): Names<1>,
    Json(new): Json<NewValue>,
) -> Answer<StatusCode> {
    app.set(&path, Some(new.value), &who.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Take back what was set
///
/// What the files say holds again.
#[utoipa::path(delete, path = "/settings/{path}", tag = "cluster", params(("path" = String, Path)),
    responses((status = 204, description = "It is not set.")))]
async fn unset(State(app): State<App>, Admin(who): Admin, Names([path]): Names<1>) -> Answer<StatusCode> {
    app.set(&path, None, &who.name).await?;
    Ok(StatusCode::NO_CONTENT)
}
