//! `#[retryable]`: its options and its fn are read, and what is wrong with either is told, before anything is made of them.
//!
//! Wrong options do not take the fn away: it is expanded with the options that are right, so that the compiler complains of
//! the mistake and not of every use of the fn. A fn that cannot be retryable is left as it was written, for the same reason.

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::ItemFn;

use crate::expand;
use crate::options::Options;
use crate::problems::Problems;
use crate::signature::Call;

pub(crate) fn expand(options: Tokens, item: Tokens) -> Tokens {
    let mut problems = Problems::default();
    let options = Options::read(options, &mut problems);
    let call = problems.take(function(item.clone())).and_then(|function| Call::read(function, &mut problems));
    let expanded = call.map_or(item, |call| expand::expand(&call, &options));
    let errors = problems.to_tokens();
    quote!(#errors #expanded)
}

fn function(item: Tokens) -> syn::Result<ItemFn> {
    syn::parse2(item).map_err(|e| syn::Error::new(e.span(), format!("`#[retryable]` goes on an async fn: {e}")))
}
