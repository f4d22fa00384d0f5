//! `#[derive(ErrColumns)]`: reads an entity that has the nine `err_*` columns of a guard as one of its fields.

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{Data, DeriveInput, Field, Fields, LitStr, Type};

pub(crate) fn expand(input: &DeriveInput) -> syn::Result<Tokens> {
    let wrong = |said: &str| Err(syn::Error::new_spanned(&input.ident, said));
    let Data::Struct(data) = &input.data else { return wrong("ErrColumns is for structs") };
    let Fields::Named(fields) = &data.fields else { return wrong("ErrColumns is for structs with named fields") };
    let (flat, plain): (Vec<&Field>, Vec<&Field>) = fields.named.iter().partition(|field| is_err_columns(&field.ty));
    if flat.len() != 1 {
        return wrong("one field must be of the type redrive::guard::ErrColumns: `err: ErrColumns`");
    }
    let columns = plain.iter().map(|field| column(field)).collect::<syn::Result<Vec<_>>>()?;
    let (names, types): (Vec<_>, Vec<_>) = plain.iter().map(|field| (&field.ident, &field.ty)).unzip();
    let (flat_names, flat_types): (Vec<_>, Vec<_>) = flat.iter().map(|field| (&field.ident, &field.ty)).unzip();
    let name = &input.ident;
    if !input.generics.params.is_empty() {
        return wrong("ErrColumns is for structs without parameters");
    }
    let sqlx = quote!(::redrive::__private::sqlx);
    Ok(quote! {
        impl<'r, R: #sqlx::Row> #sqlx::FromRow<'r, R> for #name
        where
            &'static str: #sqlx::ColumnIndex<R>,
            #(#types: #sqlx::Decode<'r, R::Database> + #sqlx::Type<R::Database>,)*
            #(#flat_types: #sqlx::FromRow<'r, R>,)*
        {
            fn from_row(row: &'r R) -> #sqlx::Result<Self> {
                ::core::result::Result::Ok(Self {
                    #(#names: #sqlx::Row::try_get(row, #columns)?,)*
                    #(#flat_names: #sqlx::FromRow::from_row(row)?,)*
                })
            }
        }
    })
}

fn is_err_columns(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "ErrColumns"))
}

/// The text of `#[column("…")]`, else the field's name.
fn column(field: &Field) -> syn::Result<LitStr> {
    match (field.attrs.iter().find(|a| a.path().is_ident("column")), &field.ident) {
        (Some(attribute), _) => attribute.parse_args(),
        (None, Some(name)) => Ok(LitStr::new(name.to_string().trim_start_matches("r#"), name.span())),
        (None, None) => Err(syn::Error::new_spanned(field, "a field without a name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &str) -> String {
        let input: DeriveInput = syn::parse_str(code).unwrap();
        expand(&input).unwrap_err().to_string()
    }

    #[test]
    fn wrong_entities_are_refused_with_what_is_right() {
        assert!(error("enum E { A }").contains("for structs"));
        assert!(error("struct E(i64);").contains("named fields"));
        assert!(error("struct E { id: i64 }").contains("err: ErrColumns"));
        assert!(error("struct E { a: ErrColumns, b: ErrColumns }").contains("one field"));
        assert!(error("struct E<T> { a: T, err: ErrColumns }").contains("without parameters"));
        assert!(error("struct E { #[column(5)] a: i64, err: ErrColumns }").contains("string literal"));
    }
}
