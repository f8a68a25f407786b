//! Fuzz targets of ringfold; see [`targets`].
pub mod targets;
