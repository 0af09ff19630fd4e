"""The operators' actions on the lake, the doctor, and which groups a store knows."""
