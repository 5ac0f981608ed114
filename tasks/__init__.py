"""What front ends ask for, a few lines each; importing this package imports no Prefect."""
