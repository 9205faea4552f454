<?php echo "owned";
