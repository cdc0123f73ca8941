"""The demo: garments in changing weather, with bags that the model has never seen."""
