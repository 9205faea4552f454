<?php echo "secret";
